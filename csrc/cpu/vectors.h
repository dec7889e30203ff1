// Loops over the vectors of a row, and horizontal sums. Compiled once per SIMD level.
#pragma once

#include "common/simd.h"

namespace rnnkern {
namespace {

// Rounds a row length up to whole vectors.
template <class T>
constexpr int64_t padded(int64_t n) {
  return (n + Vec<T>::width - 1) / Vec<T>::width * Vec<T>::width;
}

// Calls f(unit, lanes) for each vector of units. All vectors but the last are full.
template <class V, class F>
RNNKERN_INLINE void for_vectors(int64_t begin, int64_t end, F f) {
  int64_t unit = begin;
  for (; unit + V::width <= end; unit += V::width) f(unit, V::all);
  if (unit < end) f(unit, end - unit);
}

template <class T>
RNNKERN_INLINE T horizontal_sum(Vec<T> x) {
  alignas(64) T lanes[Vec<T>::width];
  x.store(lanes);
#pragma GCC unroll 4
  for (int size = Vec<T>::width / 2; size > 0; size /= 2)
#pragma GCC unroll 8
    for (int k = 0; k < size; ++k) lanes[k] = lanes[k] + lanes[k + size];
  return lanes[0];
}

}  // namespace
}  // namespace rnnkern
