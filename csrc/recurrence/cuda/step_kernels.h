// Which pointwise kernels a call starts.
#pragma once

#include <vector>

#include "recurrence/cells.h"
#include "recurrence/cuda/kernels.h"

namespace rnnkern {

// What zoneout, dropout and the products between them need of a call whose state is stored as S: all pointwise kernels
// that it starts if it runs step by step, and that the backward of others starts beside the kernel that keeps R.
template <class S>
std::vector<const cuda::Kernel*> step_kernels(const CellKernels& kernels, const CellNumbers& cell, bool noisy);

}  // namespace rnnkern
