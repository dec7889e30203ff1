#include "recurrence/cuda/kernels.h"

#include "recurrence/cells.h"
#include "recurrence/cuda/block_backward.cuh"
#include "recurrence/cuda/block_forward.cuh"
#include "recurrence/cuda/cluster_backward.cuh"
#include "recurrence/cuda/cluster_forward.cuh"
#include "recurrence/cuda/grid_backward.cuh"
#include "recurrence/cuda/grid_forward.cuh"

namespace rnnkern {
namespace {

// What registers and shared memory of 16 blocks hold.
template <class Cell, class M>
constexpr bool has_cluster(int D) {
  if (std::is_same_v<M, float>) return D <= 512;
  return D <= (Cell::gates == 1 ? 1024 : sizeof(Stored<M>) == 4 ? 512 : 768);
}

template <class Kernel>
Resident of_block() {
  return {&cuda::kernel<Kernel>, Kernel::Tile::columns, Kernel::shared_size};
}

template <class Kernel>
Resident of_cluster() {
  return {&cuda::kernel<Kernel>, Kernel::columns, Kernel::shared_size, Kernel::cluster};
}

template <class Kernel>
Resident of_grid(const GridSize& size) {
  return {&cuda::kernel<Kernel>, size.sets * grid_columns, typename Kernel::Memory(nullptr, size).used, 1,
          Kernel::words(size)};
}

}  // namespace

template <class M>
Residents ResidentKernels<M>::block(int place, int padded) {
  return visit_resident_cell(place, [&]<class Cell>(CellType<Cell>) {
    return BlockSizes::visit(padded, [](auto D) {
      return Residents{of_block<BlockForwardKernel<Cell, M, D()>>(), of_block<BlockBackwardKernel<Cell, M, D()>>()};
    });
  });
}

template <class M>
Residents ResidentKernels<M>::cluster(int place, int padded) {
  return visit_resident_cell(place, [&]<class Cell>(CellType<Cell>) {
    return ClusterSizes::visit(padded, [](auto D) {
      if constexpr (has_cluster<Cell, M>(D())) {
        return Residents{of_cluster<ClusterForwardKernel<Cell, M, D()>>(),
                         of_cluster<ClusterBackwardKernel<Cell, M, D()>>()};
      } else {
        return Residents{};
      }
    });
  });
}

template <class M>
Residents ResidentKernels<M>::grid(int place, const GridSize& size) {
  return visit_resident_cell(place, [&]<class Cell>(CellType<Cell>) {
    return Residents{of_grid<GridForwardKernel<Cell, M>>(size), of_grid<GridBackwardKernel<Cell, M>>(size)};
  });
}

// The interpreter compiles this file once per type, since it compiles what the kernels do too.
#if defined(RNNKERN_KERNELS_OF)
template struct ResidentKernels<RNNKERN_KERNELS_OF>;
#elif defined(RNNKERN_CLUSTERS_OF)
template Residents ResidentKernels<RNNKERN_CLUSTERS_OF>::cluster(int, int);
#else
template struct ResidentKernels<float>;
template struct ResidentKernels<device::bfloat16>;
template struct ResidentKernels<device::float16>;
template Residents ResidentKernels<device::tfloat32>::cluster(int, int);
#endif

}  // namespace rnnkern
