// The cluster kernels of one storage type and direction, by cell and padded H. Included by cluster_*.cu alone.
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
template <class Cell, class S>
constexpr bool has_cluster(int D) {
  return D <= (sizeof(S) == 4 ? 512 : Cell::gates == 1 ? 1024 : 768);
}

template <class Problem>
struct ClusterKernelOf;
template <class S>
struct ClusterKernelOf<ClusterForward<S>> {
  using Storage = S;
  template <class Cell, int D>
  using Kernel = ClusterForwardKernel<Cell, S, D>;
};
template <class S>
struct ClusterKernelOf<ClusterBackward<S>> {
  using Storage = S;
  template <class Cell, int D>
  using Kernel = ClusterBackwardKernel<Cell, S, D>;
};

template <class Problem>
struct ClusterEntry {
  BlockShape shape{};
  int (*launch)(const device::Launch&, const Problem&, void*) = nullptr;
};

template <class Problem, class Cell, int D>
constexpr ClusterEntry<Problem> cluster_entry() {
  using Of = ClusterKernelOf<Problem>;
  if constexpr (has_cluster<Cell, typename Of::Storage>(D)) {
    using Kernel = typename Of::template Kernel<Cell, D>;
    return {{Kernel::columns, Kernel::threads, Kernel::shared_size, Kernel::cluster}, &device::launch<Kernel>};
  } else {
    return {};
  }
}

template <class Problem, class Cell, int... places>
constexpr std::array<ClusterEntry<Problem>, sizeof...(places)> cluster_row(std::integer_sequence<int, places...>) {
  return {cluster_entry<Problem, Cell, cluster_sizes[places]>()...};
}

template <class Problem>
const ClusterEntry<Problem>& cluster_entry(int place, int padded) {
  using Sizes = std::make_integer_sequence<int, int(std::size(cluster_sizes))>;
#define RNNKERN_ROW(Cell) cluster_row<Problem, Cell>(Sizes()),
  static constexpr std::array<ClusterEntry<Problem>, std::size(cluster_sizes)> entries[] = {RNNKERN_CELLS(RNNKERN_ROW)};
#undef RNNKERN_ROW
  return entries[place][std::find(std::begin(cluster_sizes), std::end(cluster_sizes), padded) - cluster_sizes];
}

}  // namespace

template <class Problem>
BlockShape ClusterKernels<Problem>::shape(int place, int padded) {
  return cluster_entry<Problem>(place, padded).shape;
}

template <class Problem>
int ClusterKernels<Problem>::launch(const Problem& problem, int place, int padded, void* stream) {
  const ClusterEntry<Problem>& entry = cluster_entry<Problem>(place, padded);
  const int64_t clusters = (problem.sequence.batch + problem.columns - 1) / problem.columns;
  const device::Launch shape{.blocks = clusters * entry.shape.cluster,
                             .shared_bytes = entry.shape.shared_bytes,
                             .cluster = entry.shape.cluster};
  return entry.launch(shape, problem, stream);
}

}  // namespace rnnkern
