// Included first by the source that rnnkern writes for a cell compiled at run time (rnnkern/_cells/library.py); the
// cell and RNNKERN_COMPILED_KERNELS(its type) follow. The host compiler turns it into a table of kernels, each of which
// is compiled for the device when it is first started. No torch headers.
#pragma once

#include "recurrence/cuda/resident_table.h"
#include "recurrence/cuda/step_table.h"

namespace rnnkern {

template <class Cell>
constexpr CompiledKernels compiled_kernels{
    {resident_table<Cell, float>, resident_table<Cell, device::bfloat16>, resident_table<Cell, device::float16>,
     resident_table<Cell, device::tfloat32>},
    {step_table<Cell, float>, step_table<Cell, device::bfloat16>, step_table<Cell, device::float16>,
     step_table<Cell, double>}};

}  // namespace rnnkern

#define RNNKERN_COMPILED_KERNELS(Cell)                                                   \
  extern "C" [[gnu::visibility("default")]] const rnnkern::CompiledCell rnnkern_cell = { \
      0, rnnkern::numbers_of<Cell>, nullptr, &rnnkern::compiled_kernels<Cell>};
