// Which CUDA kernel serves a call, and how it is launched: the written table, a pure function.
#pragma once

#include <algorithm>
#include <string>

#include "common/tensor.h"
#include "device/facts.h"
#include "recurrence/cuda_kernels.h"
#include "recurrence/grid_kernels.h"
#include "recurrence/measured.h"

namespace rnnkern {

struct Sizes {
  int64_t steps, batch, hidden, heads;  // T, B, H, K

  int64_t most() const { return std::max({steps, batch, hidden}); }
};

struct Plan {
  const char* kernel;  // "block", "cluster", "cluster_tf32", "grid" or "stepwise"
  std::string reason;
  int padded;                    // the head size that a block or cluster kernel is compiled for, or 0
  BlockShape forward, backward;  // of a kernel that keeps R
  GridSize grid;                 // of a grid kernel
  bool tf32;                     // R multiplies float32 as tfloat32
  // The backward computes gates again and adds up dR for so many steps at a time: the rows fill the device, and work
  // space does not grow with T.
  int64_t chunk_steps;

  bool block() const { return padded > 0 && !cluster(); }
  bool cluster() const { return forward.cluster > 1; }
  bool on_grid() const { return grid.members > 0; }
  bool stepwise() const { return padded == 0 && !on_grid(); }
};

// noisy: with zoneout or dropout. allows_tf32: asked where a kernel could multiply float32 so. rows: where the grid
// kernel measured faster than a cluster, it is taken first, and a reason says where torch.nn measured faster.
Plan plan_recurrence(const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes, bool noisy,
                     bool (*allows_tf32)(), const std::vector<Measured>& rows = measured());

// Why no cluster or grid kernel can serve a dense R, or an empty string; they set their part of the plan.
std::string refuse_cluster(Plan& plan, const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes);
std::string refuse_grid(Plan& plan, const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes);

}  // namespace rnnkern
