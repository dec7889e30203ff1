// Shared by the grid kernels of both directions: the sequences and steps of a block, and their order.
#pragma once

#include "recurrence/cuda/grid_tile.cuh"

namespace rnnkern {

// One step of a set of 8 columns. All members of a group process the same items in the same order: step by step, and
// within a step set by set, so that the exchange of one set overlaps with the products of the others.
struct GridItem {
  int step, set;  // the step counts in processing order
};

RNNKERN_DEVICE uint32_t tag_of(GridItem item) { return uint32_t(item.step) + 1; }

struct GridPlace {
  int member, group, groups, sets;  // sets: number of sets of this group
  int unit, column, batch, hidden;  // of this thread
  int* lengths;                     // of the columns of every set, in shared memory

  RNNKERN_DEVICE GridPlace(const Sequence& seq, const GridSize& size, int unit, int column, int* lengths)
      : member(device::block() % size.members),
        group(device::block() / size.members),
        groups(size.groups),
        sets((int((seq.batch + grid_columns - 1) / grid_columns) - group + groups - 1) / groups),
        unit(unit),
        column(column),
        batch(int(seq.batch)),
        hidden(int(seq.hidden)),
        lengths(lengths) {
    for (int i = device::thread(); i < sets * grid_columns; i += grid_threads) {
      lengths[i] = int(seq.length(first(i / grid_columns) + i % grid_columns));
    }
  }

  // The first sequence of a set. Sets are dealt to groups in turn, so that each group has long and short sequences.
  RNNKERN_DEVICE int first(int set) const { return (group + set * groups) * grid_columns; }
  RNNKERN_DEVICE int sequence(int set) const { return first(set) + column; }
  RNNKERN_DEVICE int64_t element(int set) const { return int64_t(sequence(set)) * hidden + unit; }
  RNNKERN_DEVICE bool real(int set) const { return unit < hidden && sequence(set) < batch; }
  // Sequences are sorted: the first sequence of a set is its longest, and the first set has the longest of all.
  RNNKERN_DEVICE int longest(int set) const { return set < sets ? lengths[set * grid_columns] : 0; }
  RNNKERN_DEVICE int length(int set) const { return unit < hidden ? lengths[set * grid_columns + column] : 0; }

  // The next item. `steps(set)` must not increase with the set.
  template <class Steps>
  RNNKERN_DEVICE static GridItem after(GridItem item, Steps steps) {
    ++item.set;
    return item.step < steps(item.set) ? item : GridItem{item.step + 1, 0};
  }
};

// What all threads of a grid kernel do: run all items. Inputs are loaded one item ahead, and the rows where they start
// two items ahead, so that no load waits for another. A thread keeps arrays in objects of their own, as in `run_block`.
// It has
//   begin() end()                    reads and writes the state of all sets
//   steps(set)                       of a set
//   rows_of(item)                    the rows where the inputs of an item start
//   fetch(item, rows)                loads the inputs; called by threads with a unit and a column
//   step(item, rows, next, ahead)    fetches the next item early
template <class Kernel>
RNNKERN_DEVICE void run_grid(const typename Kernel::Problem& problem) {
  typename Kernel::Tile tile;
  typename Kernel::Values own;
  Kernel thread(problem, tile, own);
  thread.begin();
  const auto steps = [&](int set) { return thread.steps(set); };
  GridItem item{0, 0}, next = GridPlace::after(item, steps);
  auto rows = thread.rows_of(item), ahead = thread.rows_of(next);
  if (Kernel::Thread::has()) thread.fetch(item, rows);
  RNNKERN_ROLLED
  while (item.step < thread.steps(0)) {
    const GridItem latest = GridPlace::after(next, steps);
    const auto later = thread.rows_of(latest);
    thread.step(item, rows, next, ahead);
    item = next;
    next = latest;
    rows = ahead;
    ahead = later;
  }
  thread.end();
}

}  // namespace rnnkern
