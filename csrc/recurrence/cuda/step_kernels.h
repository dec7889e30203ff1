// Starts the pointwise kernels of a cell, on a stream.
#pragma once

#include <vector>

#include "cuda/kernel.h"
#include "recurrence/cells.h"
#include "recurrence/cuda/problem.h"

namespace rnnkern {

// S is how tensors are stored; `place` the cell's in cells/list.h.
template <class S>
struct StepKernels {
  static void start(int place, const StepForward<S>& problem, void* stream);
  static void start(int place, const StepBackward<S>& problem, void* stream);
  // All that calls which run step by step start, and the backward of others beside the kernel that keeps R.
  static std::vector<const cuda::Kernel*> all(int place, bool noisy);
};

}  // namespace rnnkern
