// What a source begins with that rnnkern writes for a cell at run time (rnnkern/_cells/library.py); the cell follows,
// and then RNNKERN_COMPILED_CELL(its type). No torch headers.
#pragma once

#include "recurrence/cpu/includes.h"

#include "common/simd_target.h"

#include "cells/strip.h"
#include "recurrence/cpu/cell.h"

namespace rnnkern {

template <class Cell>
constexpr CompiledStrips compiled_strips{strips_of<float, Cell>(), strips_of<double, Cell>()};

}  // namespace rnnkern

#define RNNKERN_COMPILED_CELL(Cell)                                                      \
  extern "C" [[gnu::visibility("default")]] const rnnkern::CompiledCell rnnkern_cell = { \
      RNNKERN_VECTOR_BYTES, rnnkern::numbers_of<Cell>, &rnnkern::compiled_strips<Cell>, nullptr};
