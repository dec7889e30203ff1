// Which CUDA kernel serves a call, and how it is launched: the written table, a pure function.
#pragma once

#include <algorithm>
#include <string>

#include "common/tensor.h"
#include "device/facts.h"
#include "recurrence/cuda_kernels.h"

namespace rnnkern {

struct Sizes {
  int64_t steps, batch, hidden, heads;  // T, B, H, K

  int64_t most() const { return std::max({steps, batch, hidden}); }
};

struct Plan {
  const char* kernel;  // "block", "cluster" or "stepwise"
  std::string reason;
  int padded;                    // the head size that a block or cluster kernel is compiled for, or 0
  BlockShape forward, backward;  // of a block or cluster kernel
  // The backward computes gates again and adds up dR for so many steps at a time: the rows fill the device, and work
  // space does not grow with T.
  int64_t chunk_steps;

  bool stepwise() const { return padded == 0; }
  bool cluster() const { return forward.cluster > 1; }
};

// noisy: with zoneout or dropout.
Plan plan_recurrence(const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes, bool noisy);

}  // namespace rnnkern
