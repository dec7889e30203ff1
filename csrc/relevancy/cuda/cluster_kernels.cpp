#include "relevancy/cells.h"
#include "relevancy/cuda/cluster_backward.cuh"
#include "relevancy/cuda/cluster_forward.cuh"
#include "relevancy/cuda/kernels.h"

namespace rnnkern::relevancy {
namespace {

// The sizes for which up to 16 blocks hold the weights. Smaller ones fit one block.
template <class Cell>
constexpr bool has_cluster(int D) {
  return Cell::gates > 1 ? D <= 384 : D >= 256;
}

// As few blocks as hold the weights, since more of the smaller clusters fit on the device.
template <class Cell>
constexpr int cluster_blocks(int D) {
  return D <= (Cell::gates > 1 ? 128 : 256) ? 8 : 16;
}

// Groups of four columns of each row that stay in registers: as many as the compiler takes without spilling.
template <class Cell>
constexpr int cluster_held(int D) {
  const int quads = D / 32, most = Cell::gates > 1 ? (D > 256 ? 3 : 6) : D > 384 ? 10 : 11;
  return quads < most ? quads : most;
}

// In the backward: groups of four rows of each column, of V and W_a, and below of U_a.
template <class Cell>
constexpr int rows_held(int D) {
  return Cell::gates == 1 ? (Cell::gates + 1) * D / cluster_blocks<Cell>(D) / 4 : D > 256 ? 12 : D > 128 ? 14 : 20;
}
template <class Cell>
constexpr int rows_held_keys(int D) {
  return Cell::gates > 1 || D > 384 ? 0 : D / cluster_blocks<Cell>(D) / 4;
}

}  // namespace

Residents cluster_kernels(int cell_id, int padded, int64_t slots, int64_t relevant_size) {
  return visit_cell(cell_id, [&]<class Cell>(CellType<Cell>) {
    return ClusterSizes::visit(padded, [&](auto size) -> Residents {
      constexpr int D = size(), blocks = cluster_blocks<Cell>(D);
      if constexpr (has_cluster<Cell>(D)) {
        using Forward = ClusterForwardKernel<Cell, D, blocks, cluster_held<Cell>(D)>;
        using Backward = ClusterBackwardKernel<Cell, D, blocks, rows_held<Cell>(D), rows_held_keys<Cell>(D)>;
        return {{&cuda::kernel<Forward>, Forward::shared_bytes(slots, relevant_size), blocks},
                {&cuda::kernel<Backward>, Backward::shared_bytes(slots, relevant_size), blocks}};
      }
      return {};
    });
  });
}

}  // namespace rnnkern::relevancy
