// The kernels that keep R for all steps, by cell, dtype and size.
#pragma once

#include <algorithm>

#include "cuda/kernel.h"
#include "cuda/sizes.h"
#include "recurrence/cuda/problem.h"

namespace rnnkern {

using BlockSizes = cuda::Sizes<32, 64, 128>;                      // units of a head
using ClusterSizes = cuda::Sizes<256, 384, 512, 640, 768, 1024>;  // H

// A kernel, and what one of its blocks takes.
struct Resident {
  const cuda::Kernel* kernel = nullptr;  // none where there is none of this cell and size
  int columns = 0;                       // sequences of a block, or of a cluster
  int64_t shared_bytes = 0;
  int cluster = 1;    // blocks that share the sequences
  int64_t words = 0;  // that all blocks of a grid pass on to each other
};

struct Residents {
  Resident forward, backward;

  int64_t shared_bytes() const { return std::max(forward.shared_bytes, backward.shared_bytes); }
};

// M is what R is multiplied as: float, bfloat16, float16, and of clusters tfloat32. `place` is the cell's in
// cells/list.h.
template <class M>
struct ResidentKernels {
  static Residents block(int place, int padded);
  static Residents cluster(int place, int padded);
  static Residents grid(int place, const GridSize& size);
};

}  // namespace rnnkern
