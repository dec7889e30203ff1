// The pointwise kernels that a call starts.
#pragma once

#include <vector>

#include "recurrence/cells.h"
#include "recurrence/cuda/kernels.h"

namespace rnnkern {

// All pointwise kernels of a call whose state is stored as S, with its zoneout and dropout: those of the stepwise
// kernel, of which the backward also uses some with a kernel that keeps R.
template <class S>
std::vector<const cuda::Kernel*> step_kernels(const CellKernels& kernels, const CellNumbers& cell, bool noisy);

}  // namespace rnnkern
