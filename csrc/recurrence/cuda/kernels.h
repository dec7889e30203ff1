// Tables of the CUDA kernels of a cell.
#pragma once

#include <algorithm>
#include <type_traits>

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

// The kernels that keep R, for a cell and an operand type of R. Null if the cell has none.
struct ResidentTable {
  Residents (*block)(int padded);
  Residents (*cluster)(int padded);
  Residents (*grid)(const GridSize& size);
};

// The pointwise kernels of a cell and dtype: [0] without noise, [1] with zoneout or dropout.
struct StepTable {
  const cuda::Kernel *forward[2], *backward[2];
};

// The tables of a built-in cell; `cell_id` is its index in cells/list.h. M is the operand type of R: float, bfloat16,
// float16, or tfloat32, which only has cluster kernels.
template <class M>
struct BuiltIn {
  static const ResidentTable& resident(int cell_id);
};
template <class S>
struct BuiltInSteps {
  static const StepTable& steps(int cell_id);
};

// The tables of a cell compiled at run time.
struct CompiledKernels {
  ResidentTable resident[4];  // float, bfloat16, float16, tfloat32
  StepTable steps[4];         // float, bfloat16, float16, double
};

// The index of a type in these arrays.
template <class T>
constexpr int table_index = std::is_same_v<T, float>              ? 0
                            : std::is_same_v<T, device::bfloat16> ? 1
                            : std::is_same_v<T, device::float16>  ? 2
                                                                  : 3;

struct CellKernels {
  int cell_id;
  const CompiledKernels* compiled;  // null for a built-in cell

  template <class M>
  const ResidentTable& resident() const {
    return compiled ? compiled->resident[table_index<M>] : BuiltIn<M>::resident(cell_id);
  }
  template <class S>
  const StepTable& steps() const {
    return compiled ? compiled->steps[table_index<S>] : BuiltInSteps<S>::steps(cell_id);
  }
};

}  // namespace rnnkern
