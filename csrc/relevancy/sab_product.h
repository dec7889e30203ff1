// Products of a few rows with a matrix, and sums over vectors. Once per SIMD level.
#pragma once

#include <cstdint>

#include "common/simd.h"
#include "common/simd_math.h"
#include "common/team.h"
#include "cpu/vectors.h"
#include "relevancy/cpu_product.h"
#include "relevancy/sab_problem.h"

namespace rnnkern {
namespace {

template <class T>
void pack(const T* matrix, int64_t depth, int64_t columns, T* panels) {
  Packed<T>(depth, columns, panels).pack(matrix, Member{0, 1, nullptr});
}

// out = x matrix.
template <class T>
void multiply(int rows, const T* x, int64_t stride, const SabPacked<T>& matrix, T* out, int64_t out_stride) {
  Packed<T>(matrix.depth, matrix.columns, matrix.panels)
      .multiply(0, rows, Dense<const T>{x, stride}, Dense<T>{out, out_stride});
}

template <class T>
RNNKERN_INLINE T dot(const T* a, const T* b, int64_t n) {
  using V = Vec<T>;
  V sum(0);
  for_vectors<V>(0, n, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
    sum = sum + V::load(a + j, lanes) * V::load(b + j, lanes);
  });
  return horizontal_sum(sum);
}

// y += factor x
template <class T>
RNNKERN_INLINE void add(T* y, T factor, const T* x, int64_t n) {
  using V = Vec<T>;
  for_vectors<V>(0, n, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
    (V::load(y + j, lanes) + V(factor) * V::load(x + j, lanes)).store(y + j, lanes);
  });
}

// w . tanh(x + y), or of x alone
template <class T>
RNNKERN_INLINE T weighted_tanh(const T* w, const T* x, const T* y, int64_t n) {
  using V = Vec<T>;
  V sum(0);
  for_vectors<V>(0, n, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
    V z = V::load(x + j, lanes);
    if (y) z = z + V::load(y + j, lanes);
    sum = sum + V::load(w + j, lanes) * tanh(z);
  });
  return horizontal_sum(sum);
}

}  // namespace
}  // namespace rnnkern
