// Sums over the lanes of several vectors at once. Compiled once per SIMD level.
#pragma once

#include "common/simd.h"

namespace rnnkern {
namespace {

// Adds neighbouring lanes of `count` vectors until lane k of v[0] holds a part of the sum over v[k].
template <class T, int count, int size = 1>
RNNKERN_INLINE void fold(Vec<T>* v) {
  if constexpr (size < count) {
    alignas(RNNKERN_VECTOR_BYTES) static constexpr Sides<T, size> sides;
    typename Vec<T>::RawBits low, high;
    std::memcpy(&low, sides.low, sizeof low);
    std::memcpy(&high, sides.high, sizeof high);
#pragma GCC unroll 8
    for (int i = 0; i < count; i += 2 * size)
      v[i] = Vec<T>(__builtin_shuffle(v[i].v, v[i + size].v, low)) +
             Vec<T>(__builtin_shuffle(v[i].v, v[i + size].v, high));
    fold<T, count, 2 * size>(v);
  }
}

// sums[k] = the sum over the lanes of v[k].
template <class T, int count>
RNNKERN_INLINE void sums_of_lanes(Vec<T>* v, T* sums) {
  using V = Vec<T>;
  if constexpr (count >= V::width) {
#pragma GCC unroll 8
    for (int k = 0; k < count; k += V::width) {
      fold<T, V::width>(v + k);
      v[k].store(sums + k);
    }
  } else {
    alignas(64) T lanes[V::width];
    fold<T, count>(v);
    v[0].store(lanes);
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) {
      T sum = lanes[k];
#pragma GCC unroll 16
      for (int lane = k + count; lane < V::width; lane += count) sum += lanes[lane];
      sums[k] = sum;
    }
  }
}

}  // namespace
}  // namespace rnnkern
