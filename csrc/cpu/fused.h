// Vector operations for which GCC would choose instructions by itself. Compiled once per SIMD level.
#pragma once

#include "common/simd.h"

namespace rnnkern {
namespace {

// a b + c, with one rounding if the level has FMA. If the compiler chose, bits would depend on nearby code.
template <class T>
RNNKERN_INLINE Vec<T> fused(Vec<T> a, Vec<T> b, Vec<T> c) {
#if RNNKERN_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4)
    return _mm512_fmadd_ps(a.v, b.v, c.v);
  else
    return _mm512_fmadd_pd(a.v, b.v, c.v);
#elif RNNKERN_VECTOR_BYTES == 32
  if constexpr (sizeof(T) == 4)
    return _mm256_fmadd_ps(a.v, b.v, c.v);
  else
    return _mm256_fmadd_pd(a.v, b.v, c.v);
#else
  return a * b + c;
#endif
}

// The loop over lanes in common/simd.h checks errno in every lane; and GCC 12 warns about uninitialised values in the
// plain AVX-512 intrinsic.
template <class T>
RNNKERN_INLINE Vec<T> root(Vec<T> x) {
#if RNNKERN_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4)
    return _mm512_maskz_sqrt_ps(__mmask16(-1), x.v);
  else
    return _mm512_maskz_sqrt_pd(__mmask8(-1), x.v);
#elif RNNKERN_VECTOR_BYTES == 32
  if constexpr (sizeof(T) == 4)
    return _mm256_sqrt_ps(x.v);
  else
    return _mm256_sqrt_pd(x.v);
#elif defined(__x86_64__)
  if constexpr (sizeof(T) == 4)
    return _mm_sqrt_ps(x.v);
  else
    return _mm_sqrt_pd(x.v);
#else
  return sqrt(x);
#endif
}

}  // namespace
}  // namespace rnnkern
