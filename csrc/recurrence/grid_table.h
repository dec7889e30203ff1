// The grid kernels of one storage type, by cell. Included by grid_*.cu alone.
#pragma once

#include "recurrence/grid_backward.h"
#include "recurrence/grid_forward.h"

namespace rnnkern {
namespace {

template <class Problem>
struct GridEntry {
  GridShape (*shape)(const GridSize&);
  int (*launch)(const device::Launch&, const Problem&, void*);
};

template <class Kernel>
GridShape grid_shape(const GridSize& size) {
  return {Kernel::threads, typename Kernel::Memory(nullptr, size).used, Kernel::words(size)};
}

template <template <class, class> class Kernel, class S>
const auto& grid_entries() {
#define RNNKERN_ENTRY(Cell) {&grid_shape<Kernel<Cell, S>>, &device::launch<Kernel<Cell, S>>},
  static constexpr GridEntry<typename Kernel<Tanh, S>::Problem> entries[] = {RNNKERN_CELLS(RNNKERN_ENTRY)};
#undef RNNKERN_ENTRY
  return entries;
}

template <class Entry, class Problem>
int grid_launch(const Entry& entry, const Problem& problem, void* stream) {
  const GridShape shape = entry.shape(problem.size);
  return entry.launch({.blocks = problem.size.blocks(), .shared_bytes = shape.shared_bytes, .cooperative = true},
                      problem, stream);
}

}  // namespace

template <class S>
GridShape GridKernels<S>::forward_shape(int place, const GridSize& size) {
  return grid_entries<GridForwardKernel, S>()[place].shape(size);
}

template <class S>
GridShape GridKernels<S>::backward_shape(int place, const GridSize& size) {
  return grid_entries<GridBackwardKernel, S>()[place].shape(size);
}

template <class S>
int GridKernels<S>::forward(const GridForward<S>& problem, int place, void* stream) {
  return grid_launch(grid_entries<GridForwardKernel, S>()[place], problem, stream);
}

template <class S>
int GridKernels<S>::backward(const GridBackward<S>& problem, int place, void* stream) {
  return grid_launch(grid_entries<GridBackwardKernel, S>()[place], problem, stream);
}

}  // namespace rnnkern
