#include <algorithm>
#include <array>
#include <utility>

#include "device/launch.h"
#include "relevancy/cells.h"
#include "relevancy/cluster_backward.h"
#include "relevancy/cluster_forward.h"
#include "relevancy/cuda_kernels.h"

namespace rnnkern::relevancy {
namespace {

struct Entry {
  int blocks = 0;
  int64_t (*forward_bytes)(int64_t slots, int64_t relevant_size) = nullptr;
  int64_t (*backward_bytes)(int64_t slots, int64_t relevant_size) = nullptr;
  int (*forward)(const device::Launch& shape, const SampleForward& problem, void* stream) = nullptr;
  int (*backward)(const device::Launch& shape, const SampleBackward& problem, void* stream) = nullptr;
};

// What registers and shared memory of 16 blocks hold; one block holds less than the least.
template <class Cell>
constexpr bool has_cluster(int D) {
  return Cell::gates > 1 ? D <= 384 : D >= 256;
}

// As few as hold the weights, for more clusters find room.
template <class Cell>
constexpr int cluster_blocks(int D) {
  return D <= (Cell::gates > 1 ? 128 : 256) ? 8 : 16;
}

// Quads of each row that stay in registers: what the compiler takes without spilling.
template <class Cell>
constexpr int cluster_held(int D) {
  const int quads = D / 32, most = Cell::gates > 1 ? (D > 256 ? 3 : 6) : D > 384 ? 11 : 12;
  return quads < most ? quads : most;
}

// Likewise backward: quads of rows of each column, of V and W_a and of U_a.
template <class Cell>
constexpr int rows_held(int D) {
  return Cell::gates == 1 ? (Cell::gates + 1) * D / cluster_blocks<Cell>(D) / 4 : D > 256 ? 12 : D > 128 ? 14 : 20;
}
template <class Cell>
constexpr int rows_held_keys(int D) {
  return Cell::gates > 1 || D > 384 ? 0 : D / cluster_blocks<Cell>(D) / 4;
}

template <class Cell, int D>
constexpr Entry entry() {
  if constexpr (has_cluster<Cell>(D)) {
    constexpr int blocks = cluster_blocks<Cell>(D);
    using Forward = ClusterForwardKernel<Cell, D, blocks, cluster_held<Cell>(D)>;
    using Backward = ClusterBackwardKernel<Cell, D, blocks, rows_held<Cell>(D), rows_held_keys<Cell>(D)>;
    return {blocks, &Forward::shared_bytes, &Backward::shared_bytes, &device::launch<Forward>,
            &device::launch<Backward>};
  } else {
    return {};
  }
}

using Entries = std::array<Entry, std::size(cluster_sizes)>;

template <class Cell, int... places>
constexpr Entries entries_of(std::integer_sequence<int, places...>) {
  return {entry<Cell, cluster_sizes[places]>()...};
}

const Entry& find(int place, int padded) {
  using Sizes = std::make_integer_sequence<int, int(std::size(cluster_sizes))>;
#define RNNKERN_ENTRIES(Cell) entries_of<Cell>(Sizes()),
  static constexpr Entries entries[] = {RNNKERN_RELEVANCY_CELLS(RNNKERN_ENTRIES)};
#undef RNNKERN_ENTRIES
  return entries[place][std::find(std::begin(cluster_sizes), std::end(cluster_sizes), padded) - cluster_sizes];
}

}  // namespace

int ClusterKernels::blocks(int place, int padded) { return find(place, padded).blocks; }

int64_t ClusterKernels::forward_bytes(int place, int padded, int64_t slots, int64_t relevant_size) {
  return find(place, padded).forward_bytes(slots, relevant_size);
}

int64_t ClusterKernels::backward_bytes(int place, int padded, int64_t slots, int64_t relevant_size) {
  return find(place, padded).backward_bytes(slots, relevant_size);
}

int ClusterKernels::forward(const SampleForward& problem, int place, int padded, void* stream) {
  const Entry& entry = find(place, padded);
  const device::Launch shape{.blocks = problem.rows.batch * entry.blocks,
                             .shared_bytes = entry.forward_bytes(problem.memory.slots, problem.memory.relevant_size),
                             .cluster = entry.blocks};
  return entry.forward(shape, problem, stream);
}

int ClusterKernels::backward(const SampleBackward& problem, int place, int padded, void* stream) {
  const Entry& entry = find(place, padded);
  const History& history = problem.attend.history;
  const device::Launch shape{.blocks = problem.cell.rows.batch * entry.blocks,
                             .shared_bytes = entry.backward_bytes(history.slots, history.relevant_size),
                             .cluster = entry.blocks};
  return entry.backward(shape, problem, stream);
}

}  // namespace rnnkern::relevancy
