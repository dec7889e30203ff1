// Fills the table of a cell's kernels that keep R.
#pragma once

#include "recurrence/cuda/block_backward.cuh"
#include "recurrence/cuda/block_forward.cuh"
#include "recurrence/cuda/cluster_backward.cuh"
#include "recurrence/cuda/cluster_forward.cuh"
#include "recurrence/cuda/grid_backward.cuh"
#include "recurrence/cuda/grid_forward.cuh"
#include "recurrence/cuda/kernels.h"

namespace rnnkern {

constexpr int most_resident_gates = 4;  // more gates need too many registers

template <class Cell>
constexpr bool has_resident = Cell::recurrent > 0 && Cell::recurrent <= most_resident_gates;

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
Residents block_kernels(int padded) {
  return BlockSizes::visit(padded, [](auto D) {
    if constexpr (has_block<Cell, M>(D())) {
      const auto of = []<class Kernel>() {
        return Resident{&cuda::kernel<Kernel>, Kernel::Tile::columns, Kernel::shared_size};
      };
      return Residents{of.template operator()<BlockForwardKernel<Cell, M, D()>>(),
                       of.template operator()<BlockBackwardKernel<Cell, M, D()>>()};
    } else {
      return Residents{};
    }
  });
}

template <class Cell, class M>
Residents cluster_kernels(int padded) {
  return ClusterSizes::visit(padded, [](auto D) {
    if constexpr (has_cluster<Cell, M>(D())) {
      const auto of = []<class Kernel>() {
        return Resident{&cuda::kernel<Kernel>, Kernel::columns, Kernel::shared_size, Kernel::cluster};
      };
      return Residents{of.template operator()<ClusterForwardKernel<Cell, M, D()>>(),
                       of.template operator()<ClusterBackwardKernel<Cell, M, D()>>()};
    } else {
      return Residents{};
    }
  });
}

template <class Cell, class S>
Residents grid_kernels(const GridSize& size) {
  const auto of = [&]<class Kernel>() {
    return Resident{&cuda::kernel<Kernel>, size.sets * grid_columns, typename Kernel::Memory(nullptr, size).used, 1,
                    Kernel::words(size)};
  };
  return {of.template operator()<GridForwardKernel<Cell, S>>(), of.template operator()<GridBackwardKernel<Cell, S>>()};
}

template <class Cell, class M>
constexpr ResidentTable resident_table_of() {
  if constexpr (!has_resident<Cell>) {
    return {};
  } else if constexpr (std::is_same_v<M, device::tfloat32>) {
    return {nullptr, &cluster_kernels<Cell, M>, nullptr};
  } else {
    return {&block_kernels<Cell, M>, &cluster_kernels<Cell, M>, &grid_kernels<Cell, M>};
  }
}

template <class Cell, class M>
inline constexpr ResidentTable resident_table = resident_table_of<Cell, M>();

}  // namespace rnnkern
