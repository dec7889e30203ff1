// Tables of the CUDA kernels of a cell.
#pragma once

#include "cuda/kernels.h"
#include "recurrence/cuda/problem.h"

namespace rnnkern {

using cuda::Resident, cuda::Residents;

// The pointwise kernels of a cell and dtype, with or without noise (zoneout or dropout).
struct StepKernels {
  const cuda::Kernel *forward, *backward;
  const cuda::Kernel *projected, *projected_backward;  // null unless h is projected
};

// The kernels of a cell for tensors of one type, or for float32 that R multiplies as tfloat32, which only clusters do.
struct KernelTable : cuda::KernelTable<> {
  StepKernels steps[2];  // [0] without noise, [1] with it
};

// The tables of a cell compiled at run time.
struct CompiledKernels {
  KernelTable tables[5];  // float, bfloat16, float16, tfloat32, double
};

struct KnownCell;  // recurrence/cells.h

// The table of any cell; T is one of these types.
template <class T>
const KernelTable& table_of(const KnownCell& cell);

}  // namespace rnnkern
