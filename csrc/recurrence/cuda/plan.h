// Selects the CUDA kernel of a call, and its launch parameters. A pure function.
#pragma once

#include <algorithm>
#include <string>

#include "cuda/plans.h"
#include "recurrence/cells.h"
#include "recurrence/cuda/kernels.h"
#include "recurrence/cuda/measured.h"

namespace rnnkern {

using cuda::KernelKind;

struct Sizes {
  int64_t steps, batch, hidden, heads;  // T, B, H, K

  int64_t most() const { return std::max({steps, batch, hidden}); }
};

// What a plan depends on.
struct Wanted {
  cuda::Facts facts;
  KnownCell cell;
  ScalarType dtype;
  Sizes sizes;
  bool noisy;             // with zoneout or dropout
  bool (*allows_tf32)();  // called if a kernel could multiply float32 in TF32
};

struct Plan {
  KernelKind kind = KernelKind::stepwise;
  std::string reason;
  Residents kernels{};  // the kernels that keep R; null if stepwise
  int padded = 0;       // the size for which the block or cluster kernel is compiled
  GridSize grid{};
  bool tf32 = false;  // float32 R is multiplied in TF32
  // Steps of a chunk, in which the backward recomputes gates and adds up dR: enough rows to fill the device, with a
  // workspace that does not grow with T.
  int64_t chunk_steps = 0;

  bool stepwise() const { return kind == KernelKind::stepwise; }
  const char* name() const { return tf32 ? "cluster_tf32" : cuda::name(kind); }
};

// rows: measurements. The grid kernel is chosen over the cluster kernel if it measured faster; the reason says if
// torch.nn measured faster.
Plan plan_recurrence(const Wanted& wanted, const std::vector<Measured>& rows = measured());

}  // namespace rnnkern
