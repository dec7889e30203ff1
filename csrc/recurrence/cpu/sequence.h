// What the forward and the backward loop over time share: how threads divide the work, the previous state of a step,
// and rows of gates. kernels.h includes this file once per SIMD level.
#pragma once

#include "common/simd.h"
#include "recurrence/problem.h"

namespace rnnkern {
namespace {

// What a thread works on: either all panels of a product and a share of the sequences, or a share of the panels and all
// sequences.
struct WorkRange {
  int64_t row0, row1;    // sequences it computes
  int64_t copy0, copy1;  // sequences whose states it copies in and out
  bool split_hidden;
  ThreadContext me;

  WorkRange(const Steps& steps, bool split_hidden, ThreadContext me) : split_hidden(split_hidden), me(me) {
    copy0 = split_hidden ? steps.batch * me.rank / me.size : boundary(steps, me.rank, me.size);
    copy1 = split_hidden ? steps.batch * (me.rank + 1) / me.size : boundary(steps, me.rank + 1, me.size);
    row0 = split_hidden ? 0 : copy0;
    row1 = split_hidden ? steps.batch : copy1;
  }

  // The first sequence of a thread. Sequences are sorted by decreasing length and divided so that all threads have
  // about equally many steps.
  static int64_t boundary(const Steps& steps, int rank, int size) {
    if (rank == size || !steps.offsets) return steps.batch * rank / size;
    int64_t low = 0, high = steps.batch;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      int64_t work = 0;
      for (int64_t t = 0; t < steps.count; ++t) work += smaller(steps.rows(t), middle);
      if (work * size < steps.total() * rank) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  int64_t first_panel(int64_t panels) const { return split_hidden ? panels * me.rank / me.size : 0; }
  int64_t last_panel(int64_t panels) const { return split_hidden ? panels * (me.rank + 1) / me.size : panels; }

  // Every thread needs the results of all threads.
  void barrier() const {
    if (split_hidden) me.barrier();
  }
};

struct Units {
  int64_t begin, end;
};

// Prefetches the next row: hardware prefetchers do not follow such short runs.
template <class T>
RNNKERN_INLINE void prefetch(const T* row, Units units) {
  for (int64_t unit = units.begin; unit < units.end; unit += 64 / sizeof(T)) __builtin_prefetch(row + unit);
}

// memcpy does not allow null pointers even if there is nothing to copy.
template <class T>
void copy(T* to, const T* from, int64_t elements) {
  if (elements > 0) std::memcpy(to, from, sizeof(T) * elements);
}

template <class T>
void clear(T* to, int64_t elements) {
  if (elements > 0) std::memset(to, 0, sizeof(T) * elements);
}

// The number of steps that are projected together, enough rows for a block per thread.
template <class Problem>
int64_t chunk_steps(const Problem& p, const Progress* input, int team) {
  const int64_t wanted = int64_t(chunk_rows) * (p.split_hidden ? 1 : team) / larger(p.steps.batch, 1);
  const int64_t most = input || p.progress ? p.steps.count / min_pipeline_chunks : p.steps.count;
  return larger(smaller(smaller(wanted, chunk_rows), most), 1);
}

// Steps begin..end-1 in processing order, with a thread's rows numbered consecutively.
struct Chunk {
  const Steps& steps;
  int64_t begin, end, row0;

  Chunk(const Steps& steps, int64_t begin, int64_t end, const WorkRange& share)
      : steps(steps), begin(begin), end(end), row0(share.row0) {
    start_[0] = 0;
    for (int64_t k = begin; k < end; ++k)
      start_[k - begin + 1] = start_[k - begin] + larger(smaller(share.row1, steps.rows(steps.at(k))) - row0, 0);
  }

  int64_t rows() const { return start_[end - begin]; }
  // Rows of a workspace that has all sequences at each step of the chunk.
  int64_t slot(int64_t k, int64_t b) const { return (k - begin) * steps.batch + b; }
  // The number of the row of sequence b at step k.
  int64_t index(int64_t k, int64_t b) const { return start_[k - begin] + b - row0; }

  struct Row {
    int64_t k, b, row;  // step in processing order, sequence, row of the (rows, columns) tensors
  };
  // Cheap if called with increasing numbers.
  Row at(int64_t index) const {
    while (index < start_[step_]) --step_;
    while (index >= start_[step_ + 1]) ++step_;
    const int64_t b = row0 + index - start_[step_], k = begin + step_;
    return {k, b, steps.offset(steps.at(k)) + b};
  }

 private:
  int64_t start_[chunk_rows + 1];
  mutable int64_t step_ = 0;
};

// The previous state of a sequence at step t: that of the step before, the initial state, or zeros after a reset.
template <class T>
struct PreviousState {
  const Steps& steps;
  Rows<T> initial;  // (B, width)
  Rows<T> zeros;
  const bool* reset;
  int64_t width, t, rows_before = 0;
  Rows<T> before;

  // Previous states are in `carried` (B, width).
  RNNKERN_INLINE PreviousState(const Steps& steps, Rows<T> carried, const T* zeros, const bool* reset, int64_t width,
                               int64_t t)
      : steps(steps), initial(carried), zeros(zeros), reset(reset), width(width), t(t), before(carried) {}

  // Previous states are in a tensor (rows, width) of all steps.
  RNNKERN_INLINE PreviousState(const Steps& steps, Rows<T> initial, Rows<T> sequence, const T* zeros, const bool* reset,
                               int64_t width, int64_t t)
      : PreviousState(steps, initial, zeros, reset, width, t) {
    const int64_t tb = steps.before(t);
    if (tb < 0 || tb >= steps.count) return;
    rows_before = steps.rows(tb);
    before = sequence.from(steps.offset(tb) * width);
  }

  RNNKERN_INLINE bool is_reset(int64_t b) const { return reset && reset[t * steps.batch + b]; }
  RNNKERN_INLINE Rows<T> operator()(int64_t b) const {
    if (is_reset(b)) return zeros;
    return (b < rows_before ? before : initial).from(b * width);
  }
};

}  // namespace
}  // namespace rnnkern
