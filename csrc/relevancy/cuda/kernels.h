// The kernels of the relevancy recurrence that keep the weights. `cell_id` is the cell's index in relevancy/cells.h.
#pragma once

#include "cuda/kernel.h"
#include "cuda/sizes.h"
#include "relevancy/cuda/problem.h"

namespace rnnkern::relevancy {

using PerSequenceSizes = cuda::Sizes<64, 128, 256>;    // n, for kernels with one sample per block
using ClusterSizes = cuda::Sizes<128, 256, 384, 512>;  // n, for kernels with one sample per cluster

// A kernel that keeps the weights for all steps, and the resources of one of its blocks.
struct Resident {
  const cuda::Kernel* kernel = nullptr;  // null if there is none for this cell and size
  int64_t shared_bytes = 0;
  int cluster = 1;                     // blocks per sample
  const cuda::Kernel* pack = nullptr;  // runs first and packs the weights; or null
  int pack_blocks = 0;

  int64_t packed_floats() const { return pack ? int64_t(pack_blocks) * pack->threads * 4 : 0; }
};

struct Residents {
  Resident forward, backward;
};

// W is the type in which V, W_a and U_a are kept on the chip: float, or a 16-bit type if their values have 16 bits.
template <class W>
Residents per_sequence_kernels(int cell_id, int padded, int64_t slots, int64_t relevant_size);

Residents cluster_kernels(int cell_id, int padded, int64_t slots, int64_t relevant_size);

}  // namespace rnnkern::relevancy
