// The kernels with one element per thread that the drivers of several families start between products.
#pragma once

#include "cuda/rows.h"
#include "device/device.h"

namespace rnnkern {

constexpr int step_threads = 256;

RNNKERN_DEVICE int64_t global_thread() { return int64_t(device::block()) * step_threads + device::thread(); }

// previous (K, rows, D), of the steps from `first` on: the state before each row, zero after a reset.
template <class S, class T>
struct Previous {
  cuda::Sequence sequence;
  int64_t first, rows;
  const T* h;      // (all rows, H)
  const S* state;  // (B, H)
  T* previous;
};

// to[o * stride + i] += from[o * inner + i], for i < inner, o * inner + i < count.
template <class S>
struct Accumulate {
  int64_t count, inner, stride;
  const S* from;
  device::Arithmetic<S>* to;
};

// The step of a row, from `first` on.
RNNKERN_DEVICE int64_t step_of(const cuda::Sequence& seq, int64_t first, int64_t row) {
  if (!seq.offsets) return row / seq.batch;
  int64_t t = first;
  for (int64_t low = first, high = seq.count; low < high;) {  // the last step whose first row is not after the row
    const int64_t middle = (low + high) / 2;
    const bool begun = seq.offsets[middle] <= row;
    t = begun ? middle : t;
    (begun ? low : high) = begun ? middle + 1 : middle;
  }
  return t;
}

template <class S, class T>
struct PreviousKernel {
  using Problem = Previous<S, T>;
  static constexpr char header[] = "cuda/elements.cuh";
  static constexpr int threads = step_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const cuda::Sequence& seq = p.sequence;
    const int64_t index = global_thread();
    if (index >= p.rows * seq.hidden) return;
    const int64_t here = index / seq.hidden, column = index % seq.hidden, row = seq.offset(p.first) + here;
    const int64_t t = step_of(seq, p.first, row), b = row - seq.offset(t);
    const int64_t before = seq.before(t, seq.length(b)), d = seq.head_size();
    T h{};
    if (!seq.resets(t, b)) {
      if (before >= 0) {
        h = p.h[(seq.offset(before) + b) * seq.hidden + column];
      } else if constexpr (sizeof(S) == sizeof(T)) {  // the same type
        h = p.state[b * seq.hidden + column];
      } else {
        h = device::widen(p.state[b * seq.hidden + column]);
      }
    }
    p.previous[(column / d * p.rows + here) * d + column % d] = h;
  }
};

template <class S>
struct AccumulateKernel {
  using Problem = Accumulate<S>;
  static constexpr char header[] = "cuda/elements.cuh";
  static constexpr int threads = step_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int64_t index = global_thread();
    if (index >= p.count) return;
    p.to[index / p.inner * p.stride + index % p.inner] += device::widen(p.from[index]);
  }
};

}  // namespace rnnkern
