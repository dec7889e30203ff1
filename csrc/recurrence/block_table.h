// The block kernels of one storage type, by cell and padded head size. Included by block_*.cu alone.
#pragma once

#include "recurrence/block_backward.h"
#include "recurrence/block_forward.h"
#include "recurrence/cuda_kernels.h"

namespace rnnkern {
namespace {

template <class Problem>
struct BlockEntry {
  BlockShape shape;
  int (*launch)(const device::Launch&, const Problem&, void*);
};

template <class Kernel>
constexpr BlockEntry<typename Kernel::Problem> block_entry() {
  return {{Kernel::Tile::columns, Kernel::threads, Kernel::shared_size}, &device::launch<Kernel>};
}

template <template <class, class, int> class Kernel, class S>
const auto& block_entries() {
#define RNNKERN_ENTRIES(Cell) \
  {block_entry<Kernel<Cell, S, 32>>(), block_entry<Kernel<Cell, S, 64>>(), block_entry<Kernel<Cell, S, 128>>()},
  static constexpr BlockEntry<typename Kernel<Tanh, S, 32>::Problem> entries[][3] = {RNNKERN_CELLS(RNNKERN_ENTRIES)};
#undef RNNKERN_ENTRIES
  return entries;
}

constexpr int block_column(int padded) { return padded == 32 ? 0 : padded == 64 ? 1 : 2; }

template <class Entry, class Problem>
int block_launch(const Entry& entry, const Problem& problem, void* stream) {
  const Sequence& seq = problem.sequence;
  const int64_t tiles = (seq.batch + entry.shape.columns - 1) / entry.shape.columns;
  return entry.launch({.blocks = tiles * seq.heads, .shared_bytes = entry.shape.shared_bytes}, problem, stream);
}

}  // namespace

template <class S>
BlockShape BlockKernels<S>::forward_shape(int place, int padded) {
  return block_entries<BlockForwardKernel, S>()[place][block_column(padded)].shape;
}

template <class S>
BlockShape BlockKernels<S>::backward_shape(int place, int padded) {
  return block_entries<BlockBackwardKernel, S>()[place][block_column(padded)].shape;
}

template <class S>
int BlockKernels<S>::forward(const BlockForward<S>& problem, int place, int padded, void* stream) {
  return block_launch(block_entries<BlockForwardKernel, S>()[place][block_column(padded)], problem, stream);
}

template <class S>
int BlockKernels<S>::backward(const BlockBackward<S>& problem, int place, int padded, void* stream) {
  return block_launch(block_entries<BlockBackwardKernel, S>()[place][block_column(padded)], problem, stream);
}

}  // namespace rnnkern
