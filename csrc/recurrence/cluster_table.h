// The cluster kernels of one direction and one type of product, by cell and padded H. Included by cluster_*.cu alone.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "recurrence/cluster_backward.h"
#include "recurrence/cluster_forward.h"
#include "recurrence/cuda_kernels.h"

namespace rnnkern {
namespace {

// What registers and shared memory of 16 blocks hold.
template <class Cell, class M>
constexpr bool has_cluster(int D) {
  if (std::is_same_v<M, float>) return D <= 512;
  return D <= (Cell::gates == 1 ? 1024 : sizeof(Stored<M>) == 4 ? 512 : 768);
}

template <template <class> class Problem>
struct ClusterKernelOf;
template <>
struct ClusterKernelOf<ClusterForward> {
  template <class Cell, class M, int D>
  using Kernel = ClusterForwardKernel<Cell, M, D>;
};
template <>
struct ClusterKernelOf<ClusterBackward> {
  template <class Cell, class M, int D>
  using Kernel = ClusterBackwardKernel<Cell, M, D>;
};

template <class Problem>
struct ClusterEntry {
  BlockShape shape{};
  int (*launch)(const device::Launch&, const Problem&, void*) = nullptr;
};

template <template <class> class Problem, class M, class Cell, int D>
constexpr ClusterEntry<Problem<Stored<M>>> cluster_entry() {
  if constexpr (has_cluster<Cell, M>(D)) {
    using Kernel = typename ClusterKernelOf<Problem>::template Kernel<Cell, M, D>;
    return {{Kernel::columns, Kernel::threads, Kernel::shared_size, Kernel::cluster}, &device::launch<Kernel>};
  } else {
    return {};
  }
}

template <template <class> class Problem, class M, class Cell, int... places>
constexpr std::array<ClusterEntry<Problem<Stored<M>>>, sizeof...(places)> cluster_row(
    std::integer_sequence<int, places...>) {
  return {cluster_entry<Problem, M, Cell, cluster_sizes[places]>()...};
}

template <template <class> class Problem, class M>
const auto& cluster_entry(int place, int padded) {
  using Entries = std::array<ClusterEntry<Problem<Stored<M>>>, std::size(cluster_sizes)>;
  using Sizes = std::make_integer_sequence<int, int(std::size(cluster_sizes))>;
#define RNNKERN_ROW(Cell) cluster_row<Problem, M, Cell>(Sizes()),
  static constexpr Entries entries[] = {RNNKERN_CELLS(RNNKERN_ROW)};
#undef RNNKERN_ROW
  return entries[place][std::find(std::begin(cluster_sizes), std::end(cluster_sizes), padded) - cluster_sizes];
}

}  // namespace

template <template <class> class Problem, class M>
BlockShape ClusterKernels<Problem, M>::shape(int place, int padded) {
  return cluster_entry<Problem, M>(place, padded).shape;
}

template <template <class> class Problem, class M>
int ClusterKernels<Problem, M>::launch(const Problem<Stored<M>>& problem, int place, int padded, void* stream) {
  const auto& entry = cluster_entry<Problem, M>(place, padded);
  const int64_t clusters = (problem.sequence.batch + problem.columns - 1) / problem.columns;
  const device::Launch shape{.blocks = clusters * entry.shape.cluster,
                             .shared_bytes = entry.shape.shared_bytes,
                             .cluster = entry.shape.cluster};
  return entry.launch(shape, problem, stream);
}

}  // namespace rnnkern
