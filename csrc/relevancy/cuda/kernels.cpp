#include "relevancy/cuda/kernels.h"

#include "relevancy/cells.h"
#include "relevancy/cuda/cluster_backward.cuh"
#include "relevancy/cuda/cluster_forward.cuh"
#include "relevancy/cuda/per_sequence_backward.cuh"
#include "relevancy/cuda/per_sequence_forward.cuh"
#include "relevancy/cuda/stepwise_cell.cuh"

namespace rnnkern::relevancy {
namespace {

using BlockSizes = cuda::Sizes<64, 128, 256>;          // n, for kernels with one sample per block
using ClusterSizes = cuda::Sizes<128, 256, 384, 512>;  // n, for kernels with one sample per cluster

// 16-bit weights are used where float weights do not fit, or would be streamed: an LSTM of 128 units.
template <class Cell, class W>
constexpr bool has_block(int P) {
  return sizeof(W) == 4 ? P <= 128 : P == (Cell::gates > 1 ? 128 : 256);
}

template <class Kernel, int P, class W>
Resident on_block(int64_t shared_bytes) {
  using Whole = typename Kernel::Whole;
  return {.kernel = &cuda::kernel<Kernel>,
          .shared_bytes = shared_bytes,
          .columns = 1,
          .pack = Whole::packs ? &cuda::kernel<PackKernel<P, W>> : nullptr,
          .pack_blocks = Whole::packed};
}

template <class Cell, class W>
Residents block_kernels(int64_t units, int64_t slots, int64_t relevant_size) {
  return BlockSizes::least(units, [&](auto size) -> Residents {
    constexpr int P = size();
    if constexpr (has_block<Cell, W>(P)) {
      using Forward = PerSequenceForwardKernel<Cell, P, W>;
      using Backward = PerSequenceBackwardKernel<Cell, P, W>;
      return {on_block<Forward, P, W>(device::bytes_of<typename Forward::Memory>(slots, relevant_size)),
              on_block<Backward, P, W>(device::bytes_of<typename Backward::SharedLayout>())};
    }
    return {};
  });
}

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

template <class Cell>
Residents cluster_kernels(int64_t units, int64_t slots, int64_t relevant_size) {
  return ClusterSizes::least(units, [&](auto size) -> Residents {
    constexpr int D = size(), blocks = cluster_blocks<Cell>(D);
    if constexpr (has_cluster<Cell>(D)) {
      using Forward = ClusterForwardKernel<Cell, D, blocks, cluster_held<Cell>(D)>;
      using Backward = ClusterBackwardKernel<Cell, D, blocks, rows_held<Cell>(D), rows_held_keys<Cell>(D)>;
      return {
          {&cuda::kernel<Forward>, device::bytes_of<typename Forward::SharedLayout>(slots, relevant_size), blocks, 1},
          {&cuda::kernel<Backward>, device::bytes_of<typename Backward::SharedLayout>(slots, relevant_size), blocks,
           1}};
    }
    return {};
  });
}

template <class Cell, class W>
constexpr KernelTable kernel_table_of() {
  KernelTable table{};
  if constexpr (sizeof(W) < 8) table.block = &block_kernels<Cell, W>;
  if constexpr (sizeof(W) == 4) table.cluster = &cluster_kernels<Cell>;
  if constexpr (sizeof(W) >= 4) {
    table.forward = &cuda::kernel<CellForwardKernel<Cell, W>>;
    table.backward = &cuda::kernel<CellBackwardKernel<Cell, W>>;
  }
  return table;
}

template <class Cell, class W>
constexpr KernelTable kernel_table = kernel_table_of<Cell, W>();

}  // namespace

template <class W>
const KernelTable& table_of(int cell_id) {
  return *visit_cell(cell_id, []<class Cell>(CellType<Cell>) { return &kernel_table<Cell, W>; });
}

// The interpreter compiles this file once per type, because it compiles the kernels' code too.
#if defined(RNNKERN_KERNELS_OF)
template const KernelTable& table_of<RNNKERN_KERNELS_OF>(int);
#else
template const KernelTable& table_of<float>(int);
template const KernelTable& table_of<double>(int);
template const KernelTable& table_of<device::bfloat16>(int);
template const KernelTable& table_of<device::float16>(int);
#endif

}  // namespace rnnkern::relevancy
