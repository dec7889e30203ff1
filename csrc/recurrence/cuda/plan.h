// Which CUDA kernel serves a call, and how it is launched: the written table, a pure function.
#pragma once

#include <algorithm>
#include <string>

#include "common/tensor.h"
#include "cuda/facts.h"
#include "cuda/kinds.h"
#include "recurrence/cells.h"
#include "recurrence/cuda/kernels.h"
#include "recurrence/cuda/measured.h"

namespace rnnkern {

using cuda::KernelKind;

struct Sizes {
  int64_t steps, batch, hidden, heads;  // T, B, H, K

  int64_t most() const { return std::max({steps, batch, hidden}); }
};

// What a plan is made for.
struct Wanted {
  cuda::Facts facts;
  CellKernels kernels;
  CellNumbers cell;
  ScalarType dtype;
  Sizes sizes;
  bool noisy;             // with zoneout or dropout
  bool (*allows_tf32)();  // asked where a kernel could multiply float32 so
};

struct Plan {
  KernelKind kind = KernelKind::stepwise;
  std::string reason;
  Residents kernels{};  // that keep R; none of the stepwise kind
  int padded = 0;       // the units that block and cluster kernels are compiled for
  GridSize grid{};
  bool tf32 = false;  // R multiplies float32 as tfloat32
  // The backward computes gates again and adds up dR for so many steps at a time: the rows fill the device, and work
  // space does not grow with T.
  int64_t chunk_steps = 0;

  bool stepwise() const { return kind == KernelKind::stepwise; }
  const char* name() const { return tf32 ? "cluster_tf32" : cuda::name(kind); }
};

// rows: where the grid kernel measured faster than a cluster, it is taken first, and a reason says where torch.nn
// measured faster.
Plan plan_recurrence(const Wanted& wanted, const std::vector<Measured>& rows = measured());

}  // namespace rnnkern
