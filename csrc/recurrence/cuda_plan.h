// Which CUDA kernel serves a call, and how it is launched: the written table, a pure function.
#pragma once

#include <string>

#include "common/tensor.h"
#include "device/facts.h"
#include "recurrence/cuda_kernels.h"
#include "recurrence/grid_kernels.h"

namespace rnnkern {

struct Sizes {
  int64_t steps, batch, hidden, heads;  // T, B, H, K
};

struct Plan {
  const char* kernel;  // "block", "grid" or "stepwise"
  std::string reason;
  int padded;                    // of a block kernel: the head size that it is compiled for
  BlockShape forward, backward;  // of a block kernel, and of a grid kernel
  GridSize grid;                 // of a grid kernel
  // The backward computes gates again and adds up dR for so many steps at a time: the rows fill the device, and work
  // space does not grow with T.
  int64_t chunk_steps;

  bool block() const { return padded > 0; }
  bool on_grid() const { return grid.members > 0; }
  bool stepwise() const { return !block() && !on_grid(); }
};

// noisy: with zoneout or dropout.
Plan plan_recurrence(const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes, bool noisy);

// Why no grid kernel can serve, or an empty string; sets its part of the plan.
std::string refuse_grid(Plan& plan, const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes);

}  // namespace rnnkern
