// The kernels of the relevancy recurrence that depend on the cell. `place` is the cell's in relevancy/cells.h.
#pragma once

#include <vector>

#include "cuda/kernel.h"
#include "cuda/sizes.h"
#include "relevancy/cuda/problem.h"

namespace rnnkern::relevancy {

// Starts the pointwise kernels of a cell; T is float or double.
template <class T>
struct CellKernels {
  static void start(int place, const CellForward<T>& problem, void* stream);
  static void start(int place, const CellBackward<T>& problem, void* stream);
  // All that calls which run step by step start.
  static std::vector<const cuda::Kernel*> all(int place);
};

using PerSequenceSizes = cuda::Sizes<64, 128, 256>;    // n of kernels of one sample per block
using ClusterSizes = cuda::Sizes<128, 256, 384, 512>;  // n of kernels of one sample per cluster

// A kernel that keeps the weights for all steps, and what one of its blocks takes.
struct Resident {
  const cuda::Kernel* kernel = nullptr;  // none where there is none of this cell and size
  int64_t shared_bytes = 0;
  int cluster = 1;                     // blocks of a sample
  const cuda::Kernel* pack = nullptr;  // to run before it, where it takes packed weights
  int pack_blocks = 0;

  int64_t packed_floats() const { return pack ? int64_t(pack_blocks) * pack->threads * 4 : 0; }
};

struct Residents {
  Resident forward, backward;
};

// W is how the chip holds V, W_a and U_a: float, or 16 bits where they have no more.
template <class W>
struct PerSequenceKernels {
  static Residents of(int place, int padded, int64_t slots, int64_t relevant_size);
};

struct ClusterKernels {
  static Residents of(int place, int padded, int64_t slots, int64_t relevant_size);
};

}  // namespace rnnkern::relevancy
