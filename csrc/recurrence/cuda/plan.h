// Selects the CUDA kernel of a call, and its launch parameters. A pure function.
#pragma once

#include <algorithm>
#include <string>

#include "cuda/plan.h"
#include "recurrence/cells.h"
#include "recurrence/cuda/kernels.h"

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

// The first kernel of block, cluster and grid that can run the call, or the stepwise one. Where both a cluster and a
// grid can, the cluster was at least 1.3 times as fast with the backward in all 60 cases of `make gpu`, on an H100 and
// an H200.
Plan plan_recurrence(const Request& request);

}  // namespace rnnkern
