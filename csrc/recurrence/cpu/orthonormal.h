// Orthonormalizes the tangents of a sequence. Included once per SIMD level.
#pragma once

#include <cmath>
#include <limits>

#include "cpu/fused.h"
#include "cpu/storage.h"
#include "cpu/sums.h"
#include "recurrence/cpu/sequence.h"

namespace rnnkern {
namespace {

// S rows of n values. Row s consists of a row of each state tensor; rows of one tensor are contiguous.
template <class T>
struct TangentRows {
  using V = Vec<T>;
  static constexpr int together = 8;  // rows that a pass over another row reads at once

  int states;
  int64_t count;  // S
  T* of[most_states];
  int64_t width[most_states];

  int64_t size() const {
    int64_t n = 0;
    for (int k = 0; k < states; ++k) n += width[k];
    return n;
  }
  T* at(int64_t row, int state) const { return of[state] + row * width[state]; }

  // The Euclidean length of a row. Where the sum of squares overflows or may have underflowed, as after long products
  // of Jacobians, elements are first divided by the largest.
  T length(int64_t row) const {
    constexpr T eps = std::numeric_limits<T>::epsilon(), least = std::numeric_limits<T>::min() / eps / eps;
    V squares(0);
    for_vectors_of(row, [&](V x) RNNKERN_INLINE_LAMBDA { squares = fused(x, x, squares); });
    const T sum = sum_of(squares);
    return sum >= least && sum <= std::numeric_limits<T>::max() ? std::sqrt(sum) : scaled_length(row);
  }

  void divide(int64_t row, T by) const {
    for (int k = 0; k < states; ++k)
      for_vectors<V>(0, width[k], [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA {
        (V::load(at(row, k) + i, lanes) / V(by)).store(at(row, k) + i, lanes);
      });
  }

  void set_zero(int64_t row) const {
    for (int k = 0; k < states; ++k) clear(at(row, k), width[k]);
  }

  // Subtracts from a row its projections on rows 0..last-1. Rows of zeros have no effect. `row` may be among them.
  void reject(int64_t row, int64_t last) const {
    for (int64_t first = 0; first < last; first += together) {
      T along[together];
      dot(row, first, last, along);
      subtract(row, first, last, along);
    }
  }

  // Does so a second time if that left less than 0.7 of the row's length `before`, because the rounding error is
  // relative to the length before; two passes are enough (Giraud et al. 2005). Returns the length that is left.
  T reject_and_measure(int64_t row, int64_t last, T before) const {
    reject(row, last);
    const T once = length(row);
    if (once > T(0.7) * before) return once;
    reject(row, last);
    return length(row);
  }

 private:
  template <class F>
  RNNKERN_INLINE void for_vectors_of(int64_t row, F f) const {
    for (int k = 0; k < states; ++k)
      for_vectors<V>(0, width[k],
                     [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA { f(V::load(at(row, k) + i, lanes)); });
  }

  T scaled_length(int64_t row) const {
    V most(std::numeric_limits<T>::min());
    for_vectors_of(row, [&](V x) RNNKERN_INLINE_LAMBDA { most = select(abs(x) > most, abs(x), most); });
    T lanes[V::width], largest = 0;
    most.store(lanes);
    for (const T x : lanes) largest = x > largest ? x : largest;
    V squares(0);
    for_vectors_of(row, [&](V x) RNNKERN_INLINE_LAMBDA {
      const V part = x / V(largest);
      squares = fused(part, part, squares);
    });
    return largest * std::sqrt(sum_of(squares));
  }

  static T sum_of(V x) {
    T sum;
    sums_of_lanes<T, 1>(&x, &sum);
    return sum;
  }

  // along[j] = the product of a row with row first + j; 0 for rows from `last` on, and for the row itself.
  void dot(int64_t row, int64_t first, int64_t last, T* along) const {
    V sums[together];
#pragma GCC unroll 8
    for (int j = 0; j < together; ++j) sums[j] = V(0);
    for (int k = 0; k < states; ++k) {
      const Block q(*this, first, last, k);
      for_vectors<V>(0, width[k], [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA {
        const V x = V::load(at(row, k) + i, lanes);
#pragma GCC unroll 8
        for (int j = 0; j < together; ++j) sums[j] = fused(x, V::load(q.rows[j] + i, lanes), sums[j]);
      });
    }
    sums_of_lanes<T, together>(sums, along);
    for (int j = 0; j < together; ++j)
      if (first + j >= last || first + j == row) along[j] = 0;
  }

  void subtract(int64_t row, int64_t first, int64_t last, const T* along) const {
    for (int k = 0; k < states; ++k) {
      const Block q(*this, first, last, k);
      for_vectors<V>(0, width[k], [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA {
        V x = V::load(at(row, k) + i, lanes);
#pragma GCC unroll 8
        for (int j = 0; j < together; ++j) x = fused(V(-along[j]), V::load(q.rows[j] + i, lanes), x);
        x.store(at(row, k) + i, lanes);
      });
    }
  }

  // Rows first..first+together-1 of a state; in place of rows from `last` on, the last one.
  struct Block {
    const T* rows[together];

    Block(const TangentRows& of, int64_t first, int64_t last, int state) {
      for (int j = 0; j < together; ++j) rows[j] = of.at(smaller(first + j, last - 1), state);
    }
  };
};

// Gram-Schmidt. Writes the logarithms of the lengths to log_r (S,). A row that is linearly dependent on the rows before
// it, to rounding, has -inf there and is counted in `lost`; at the end it is replaced by the first unit vector that is
// not in the span of all others. `covered` is workspace of n elements.
template <class T>
void orthonormalize(const TangentRows<T>& rows, double* log_r, int64_t* lost, T* covered) {
  const int64_t n = rows.size();
  const T least = T(8 * n) * std::numeric_limits<T>::epsilon();
  bool any_lost = false;
  for (int64_t s = 0; s < rows.count; ++s) {
    const T before = rows.length(s), length = rows.reject_and_measure(s, s, before);
    if (length <= least * before) {
      log_r[s] = -std::numeric_limits<double>::infinity();
      rows.set_zero(s);
      ++lost[s];
      any_lost = true;
    } else {
      log_r[s] = std::log(double(length));
      rows.divide(s, length);
    }
  }
  if (!any_lost) return;
  clear(covered, n);
  auto cover = [&](int64_t s) {
    T* sums = covered;
    for (int k = 0; k < rows.states; sums += rows.width[k++])
      for (int64_t i = 0; i < rows.width[k]; ++i) sums[i] += rows.at(s, k)[i] * rows.at(s, k)[i];
  };
  for (int64_t s = 0; s < rows.count; ++s) cover(s);
  for (int64_t s = 0; s < rows.count; ++s) {
    if (log_r[s] != -std::numeric_limits<double>::infinity()) continue;
    int64_t unit = 0;  // at least one unit vector has a part of this length outside of the span
    while (unit < n - 1 && !(1 - covered[unit] > T(0.5) / T(n))) ++unit;
    int state = 0;
    while (unit >= rows.width[state]) unit -= rows.width[state++];
    rows.at(s, state)[unit] = 1;
    rows.divide(s, rows.reject_and_measure(s, rows.count, 1));
    cover(s);
  }
}

}  // namespace
}  // namespace rnnkern
