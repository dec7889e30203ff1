// Shared by the cluster kernels of both directions: the sequences of a cluster, and the loop over their steps.
#pragma once

#include "recurrence/cuda/problem.h"

namespace rnnkern {

constexpr int64_t cluster_memory = 227 * 1024;  // shared memory of a block, with compute capability 9.0 and 10.0

// The sequences of a cluster, and the values of this thread, each of one unit and one sequence. If there are more
// sequences than a tile takes at once, they form two groups, which alternate within a step, so that the exchange of one
// overlaps with the product of the other. The second group never has more steps.
template <class Values, int units, int groups>
struct ClusterPlace {
  const Sequence& seq;
  int hidden, rank;
  int b0, n, half;     // the cluster's first sequence, how many it has, and how many of them are in the first group
  int g = 0;           // the running group
  int steps0, steps1;  // of each group

  RNNKERN_DEVICE ClusterPlace(const Sequence& seq, int columns, int cluster, int at_once)
      : seq(seq), hidden(int(seq.hidden)), rank(device::cluster_rank()) {
    b0 = device::block() / cluster * columns;
    const int left = int(seq.batch) - b0;
    n = left < columns ? left : columns;
    half = n > at_once ? (n + 1) / 2 : n;
  }
  RNNKERN_DEVICE int first(int g) const { return b0 + g * half; }
  RNNKERN_DEVICE int count(int g) const { return g ? n - half : half; }
  RNNKERN_DEVICE int longest(int g) const { return count(g) ? int(seq.length(first(g))) : 0; }

  RNNKERN_DEVICE int steps(int g) const { return groups == 2 && g ? steps1 : steps0; }
  template <class Steps>
  RNNKERN_DEVICE void set_steps(Steps of_group) {
    steps0 = of_group(0);
    steps1 = groups == 2 ? of_group(1) : 0;
  }

  RNNKERN_DEVICE int steps() const { return steps(g); }
  RNNKERN_DEVICE int count() const { return count(g); }
  RNNKERN_DEVICE int unit(int v) const { return rank * units + Values::unit(v); }
  RNNKERN_DEVICE int sequence(int v) const { return first(g) + Values::column(v); }
  RNNKERN_DEVICE bool real(int v) const { return unit(v) < hidden && Values::column(v) < count(); }
  RNNKERN_DEVICE int length(int v) const { return real(v) ? int(seq.length(sequence(v))) : 0; }
  RNNKERN_DEVICE int64_t element(int v) const { return int64_t(sequence(v)) * hidden + unit(v); }
};

template <class T>
RNNKERN_DEVICE void swap(T& x, T& y) {
  const T before = x;
  x = y;
  y = before;
}

// Prepares mbarriers for their first phases, in which bytes(k) arrive. A barrier must follow.
template <class Bytes>
RNNKERN_DEVICE void begin_exchanges(device::Mbarrier* arrived, int count, Bytes bytes) {
  if (device::thread() > 0) return;
  for (int k = 0; k < count; ++k) device::init(arrived + k, 1);
  device::init_fence();
  for (int k = 0; k < count; ++k) device::expect(arrived + k, bytes(k));
}

// Waits until all blocks have sent their parts, and prepares the next phase.
RNNKERN_DEVICE void receive(device::Mbarrier* arrived, int parity, int bytes) {
  device::wait(arrived, parity);
  if (device::thread() == 0) device::expect(arrived, bytes);
}

// Runs all steps of a cluster's sequences. A thread keeps arrays in objects of their own, as in `run_block`. It has
//   begin() end()   reads and writes the state of the running group
//   change(to)      keeps the state of the running group in shared memory, and continues with group `to`
//   fetch(k)        loads the inputs of step k, in processing order
//   step(k)
template <int groups, class Thread>
RNNKERN_DEVICE void run_groups(Thread& thread) {
  if constexpr (groups == 2) {
    thread.at.g = 1;
    thread.begin();
    thread.change(0);
  }
  thread.begin();
  device::cluster_barrier();  // no block sends before all mbarriers are initialised
  thread.fetch(0);
  RNNKERN_ROLLED
  for (int k = 0; k < thread.at.steps(0);) {
    thread.step(k);
    const bool second = groups == 2 && thread.at.g == 0 && k < thread.at.steps(1);
    k += !second;
    if constexpr (groups == 2) {
      if (second != thread.at.g) thread.change(second);
    }
    thread.fetch(k);
  }
  thread.end();
  if constexpr (groups == 2) {
    thread.change(1);
    thread.end();
  }
  device::cluster_barrier();  // no block exits while others may still send to it
}

template <class Kernel>
RNNKERN_DEVICE void run_cluster(const typename Kernel::Problem& p) {
  if constexpr (device::has_clusters) {
    typename Kernel::Tile tile;
    typename Kernel::Values own;
    Kernel thread(p, tile, own);
    run_groups<Kernel::groups>(thread);
  } else {
    device::trap();
  }
}

}  // namespace rnnkern
