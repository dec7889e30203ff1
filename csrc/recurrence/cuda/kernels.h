// Tables of the CUDA kernels of a cell.
#pragma once

#include <algorithm>

#include "cuda/kernel.h"
#include "cuda/sizes.h"
#include "recurrence/cuda/problem.h"

namespace rnnkern {

using BlockSizes = cuda::Sizes<32, 64, 128>;                      // units of a head
using ClusterSizes = cuda::Sizes<256, 384, 512, 640, 768, 1024>;  // H

// A kernel that keeps R for all steps, and the resources of one of its blocks.
struct Resident {
  const cuda::Kernel* kernel = nullptr;  // null if the cell has no kernel of this size
  int columns = 0;                       // sequences of a block, or of a cluster
  int64_t shared_bytes = 0;
  int cluster = 1;    // blocks that share the sequences
  int64_t words = 0;  // that all blocks of a grid exchange
};

struct Residents {
  Resident forward, backward;

  int64_t shared_bytes() const { return std::max(forward.shared_bytes, backward.shared_bytes); }
};

// The pointwise kernels of a cell and dtype: [0] without noise, [1] with zoneout or dropout.
struct StepTable {
  const cuda::Kernel *forward[2], *backward[2];
};

// The kernels of a cell for tensors of one type, or for float32 that R multiplies as tfloat32, which only clusters do.
// The functions, which find kernels that keep R, are null if the cell has none.
struct KernelTable {
  Residents (*block)(int padded);
  Residents (*cluster)(int padded);
  Residents (*grid)(const GridSize& size);
  StepTable steps;
};

// The tables of a cell compiled at run time.
struct CompiledKernels {
  KernelTable tables[5];  // float, bfloat16, float16, tfloat32, double
};

struct KnownCell;  // recurrence/cells.h

// The table of any cell; T is one of these types.
template <class T>
const KernelTable& table_of(const KnownCell& cell);

}  // namespace rnnkern
