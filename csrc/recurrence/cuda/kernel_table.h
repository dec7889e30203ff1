// Fills the table of a cell's kernels. Included first by the source that rnnkern writes for a cell compiled at run time
// (rnnkern/_cells/library.py); the cell and RNNKERN_COMPILED_KERNELS(its type) follow. The host compiler turns it into
// a table of kernels, each of which is compiled for the device when it is first started. No torch headers.
#pragma once

#include <type_traits>

#include "recurrence/cuda/block_backward.cuh"
#include "recurrence/cuda/block_forward.cuh"
#include "recurrence/cuda/cluster_backward.cuh"
#include "recurrence/cuda/cluster_forward.cuh"
#include "recurrence/cuda/grid_backward.cuh"
#include "recurrence/cuda/grid_forward.cuh"
#include "recurrence/cuda/kernels.h"
#include "recurrence/cuda/step.cuh"
#include "recurrence/cuda/step_normalised.cuh"

namespace rnnkern {

using BlockSizes = cuda::Sizes<32, 64, 128>;                      // units of a head
using ClusterSizes = cuda::Sizes<256, 384, 512, 640, 768, 1024>;  // H

constexpr int most_resident_gates = 4;  // more gates need too many registers

template <class Cell, class T>
constexpr bool has_resident = Cell::recurrent > 0 && Cell::recurrent <= most_resident_gates && !Cell::projected &&
                              Cell::norms == 0 && sizeof(T) < 8;

// The float32 product of the backward reads dr in chunks of 64 elements, which must belong to the same product.
template <class Cell, class M>
constexpr bool has_block(int D) {
  return !std::is_same_v<M, float> || !Cell::two_products || Cell::first_gates * D % 64 == 0;
}

// The sizes for which 16 blocks can hold R. The 16 rows of a fragment must belong to the same product.
template <class Cell, class M>
constexpr bool has_cluster(int D) {
  if (Cell::two_products && Cell::first_gates * (D / cluster_blocks<M>(D)) % 16) return false;
  if (std::is_same_v<M, float>) return D <= 512;
  return D <= (Cell::recurrent == 1 ? 1024 : sizeof(Stored<M>) == 4 ? 512 : 768);
}

template <class Cell, class M>
Residents block_kernels(int64_t units) {
  return BlockSizes::least(units, [](auto D) -> Residents {
    if constexpr (has_block<Cell, M>(D())) {
      using Forward = BlockForwardKernel<Cell, M, D()>;
      using Backward = BlockBackwardKernel<Cell, M, D()>;
      return {{&cuda::kernel<Forward>, Forward::shared_size, 1, Forward::Tile::columns},
              {&cuda::kernel<Backward>, Backward::shared_size, 1, Backward::Tile::columns}};
    }
    return {};
  });
}

template <class Cell, class M>
Residents cluster_kernels(int64_t units) {
  return ClusterSizes::least(units, [](auto D) -> Residents {
    if constexpr (has_cluster<Cell, M>(D())) {
      using Forward = ClusterForwardKernel<Cell, M, D()>;
      using Backward = ClusterBackwardKernel<Cell, M, D()>;
      return {{&cuda::kernel<Forward>, Forward::shared_size, Forward::cluster, Forward::columns},
              {&cuda::kernel<Backward>, Backward::shared_size, Backward::cluster, Backward::columns}};
    }
    return {};
  });
}

template <class Cell, class S>
Residents grid_kernels(const GridSize& size) {
  using Forward = GridForwardKernel<Cell, S>;
  using Backward = GridBackwardKernel<Cell, S>;
  const int columns = size.sets * grid_columns;
  return {
      {&cuda::kernel<Forward>, typename Forward::Memory(nullptr, size).used, 1, columns, size, Forward::words(size)},
      {&cuda::kernel<Backward>, typename Backward::Memory(nullptr, size).used, 1, columns, size,
       Backward::words(size)}};
}

template <class Cell, class S, bool noisy>
constexpr StepKernels step_kernels() {
  if constexpr (Cell::norms > 0) {
    return {&cuda::kernel<NormalisedStepForwardKernel<Cell, S, noisy>>,
            &cuda::kernel<NormalisedStepBackwardKernel<Cell, S, noisy>>};
  } else {
    StepKernels steps{&cuda::kernel<StepForwardKernel<Cell, S, noisy>>,
                      &cuda::kernel<StepBackwardKernel<Cell, S, noisy>>};
    if constexpr (Cell::projected) {
      steps.projected = &cuda::kernel<StepProjectedKernel<S, noisy>>;
      steps.projected_backward = &cuda::kernel<StepProjectedBackwardKernel<S, noisy>>;
    }
    return steps;
  }
}

template <class Cell, class T>
constexpr KernelTable kernel_table_of() {
  KernelTable table{};
  if constexpr (has_resident<Cell, T>) table.cluster = &cluster_kernels<Cell, T>;
  if constexpr (!std::is_same_v<T, device::tfloat32>) {
    if constexpr (has_resident<Cell, T>) {
      table.block = &block_kernels<Cell, T>;
      table.grid = &grid_kernels<Cell, T>;
    }
    table.steps[false] = step_kernels<Cell, T, false>();
    table.steps[true] = step_kernels<Cell, T, true>();
  }
  return table;
}

template <class Cell, class T>
inline constexpr KernelTable kernel_table = kernel_table_of<Cell, T>();

template <class Cell>
constexpr CompiledKernels compiled_kernels{{kernel_table<Cell, float>, kernel_table<Cell, device::bfloat16>,
                                            kernel_table<Cell, device::float16>, kernel_table<Cell, device::tfloat32>,
                                            kernel_table<Cell, double>}};

}  // namespace rnnkern

#define RNNKERN_COMPILED_KERNELS(Cell)                                                   \
  extern "C" [[gnu::visibility("default")]] const rnnkern::CompiledCell rnnkern_cell = { \
      0, rnnkern::numbers_of<Cell>, nullptr, &rnnkern::compiled_kernels<Cell>};
