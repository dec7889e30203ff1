// Selects the CUDA kernel of a call, and its launch parameters. A pure function.
#pragma once

#include <algorithm>
#include <string>

#include "cuda/plan.h"
#include "recurrence/cells.h"
#include "recurrence/cuda/kernels.h"
#include "recurrence/cuda/measured.h"

namespace rnnkern {

using cuda::KernelKind, cuda::Plan;

struct Sizes {
  int64_t steps, batch, hidden, heads;  // T, B, H, K

  int64_t most() const { return std::max({steps, batch, hidden}); }
};

// What a plan depends on.
struct Request {
  cuda::Facts facts;
  KnownCell cell;
  ScalarType dtype;
  Sizes sizes;
  bool noisy;             // with zoneout or dropout
  bool (*allows_tf32)();  // called if a kernel could multiply float32 in TF32
};

// rows: measurements. The grid kernel is chosen over the cluster kernel if it measured faster; the reason says if
// torch.nn measured faster.
Plan plan_recurrence(const Request& request, const std::vector<Measured>& rows = measured());

}  // namespace rnnkern
