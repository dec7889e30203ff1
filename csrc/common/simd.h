// A SIMD vector type for every level, built on GCC's vector extension and RNNKERN_VECTOR_BYTES wide. Level sources
// include this header after their `#pragma GCC target`. The unnamed namespace keeps the code of each level separate.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/simd_target.h"

#define RNNKERN_INLINE [[gnu::always_inline]] inline
#define RNNKERN_INLINE_LAMBDA __attribute__((always_inline))

namespace rnnkern {
namespace {

RNNKERN_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
RNNKERN_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float Raw __attribute__((vector_size(RNNKERN_VECTOR_BYTES)));
  typedef int32_t RawBits __attribute__((vector_size(RNNKERN_VECTOR_BYTES)));
  static constexpr int32_t sign = INT32_MIN;
};
template <>
struct Lanes<double> {
  typedef double Raw __attribute__((vector_size(RNNKERN_VECTOR_BYTES)));
  typedef int64_t RawBits __attribute__((vector_size(RNNKERN_VECTOR_BYTES)));
  static constexpr int64_t sign = INT64_MIN;
};

// 0, 1, 2, ..., stored in memory because a compiler would otherwise build the vector lane by lane at each use.
template <class T>
struct Numbers {
  using Lane = std::remove_const_t<decltype(Lanes<T>::sign)>;
  Lane of[RNNKERN_VECTOR_BYTES / sizeof(T)];

  constexpr Numbers() : of() {
    for (Lane lane = 0; lane < Lane(RNNKERN_VECTOR_BYTES / sizeof(T)); ++lane) of[lane] = lane;
  }
};

template <class T>
RNNKERN_INLINE typename Lanes<T>::RawBits numbered() {
  alignas(RNNKERN_VECTOR_BYTES) static constexpr Numbers<T> numbers;
  typename Lanes<T>::RawBits lanes;
  std::memcpy(&lanes, numbers.of, sizeof lanes);
  return lanes;
}

// Mask of the first n lanes; empty if n is negative. n must fit the lane type: it is less than the vector width and at
// least minus a few widths.
template <class T>
RNNKERN_INLINE typename Lanes<T>::RawBits among_first(int64_t n) {
  return numbered<T>() < typename Lanes<T>::RawBits{} + typename Numbers<T>::Lane(n);
}

// Load and store of the first n lanes, for n less than the vector width. A load sets the other lanes to zero. Neither
// accesses memory beyond the n elements, which may belong to another thread or be unmapped.
#if RNNKERN_VECTOR_BYTES == 64

template <class T>
RNNKERN_INLINE auto first_mask(int64_t n) {
  if constexpr (sizeof(T) == 4)
    return _mm512_cmplt_epi32_mask((__m512i)numbered<T>(), _mm512_set1_epi32(n));
  else
    return _mm512_cmplt_epi64_mask((__m512i)numbered<T>(), _mm512_set1_epi64(n));
}

template <class T>
RNNKERN_INLINE typename Lanes<T>::Raw load_first(const T* p, int64_t n) {
  if constexpr (sizeof(T) == 4)
    return _mm512_maskz_loadu_ps(first_mask<T>(n), p);
  else
    return _mm512_maskz_loadu_pd(first_mask<T>(n), p);
}

template <class T>
RNNKERN_INLINE void store_first(typename Lanes<T>::Raw v, T* p, int64_t n) {
  if constexpr (sizeof(T) == 4)
    _mm512_mask_storeu_ps(p, first_mask<T>(n), v);
  else
    _mm512_mask_storeu_pd(p, first_mask<T>(n), v);
}

#elif RNNKERN_VECTOR_BYTES == 32

template <class T>
RNNKERN_INLINE typename Lanes<T>::Raw load_first(const T* p, int64_t n) {
  if constexpr (sizeof(T) == 4)
    return _mm256_maskload_ps(p, (__m256i)among_first<T>(n));
  else
    return _mm256_maskload_pd(p, (__m256i)among_first<T>(n));
}

template <class T>
RNNKERN_INLINE void store_first(typename Lanes<T>::Raw v, T* p, int64_t n) {
  if constexpr (sizeof(T) == 4)
    _mm256_maskstore_ps(p, (__m256i)among_first<T>(n), v);
  else
    _mm256_maskstore_pd(p, (__m256i)among_first<T>(n), v);
}

#else

template <class T>
RNNKERN_INLINE typename Lanes<T>::Raw load_first(const T* p, int64_t n) {
  typename Lanes<T>::Raw v{};
  for (int64_t k = 0; k < n; ++k) v[k] = p[k];
  return v;
}

template <class T>
RNNKERN_INLINE void store_first(typename Lanes<T>::Raw v, T* p, int64_t n) {
  for (int64_t k = 0; k < n; ++k) p[k] = v[k];
}

#endif

template <class T>
struct Vec {
  using Raw = typename Lanes<T>::Raw;
  using RawBits = typename Lanes<T>::RawBits;
  static constexpr int width = RNNKERN_VECTOR_BYTES / sizeof(T);

  Raw v;

  Vec() = default;
  RNNKERN_INLINE Vec(Raw raw) : v(raw) {}
  template <class S>
    requires std::is_arithmetic_v<S>
  RNNKERN_INLINE explicit Vec(S x)
      : v(T(x) - Raw{}) {}  // x - 0 compiles to nothing; x + 0 would have to turn -0 into 0

  RNNKERN_INLINE static Vec load(const T* p) {
    Vec x;
    std::memcpy(&x.v, p, sizeof(Raw));
    return x;
  }
  RNNKERN_INLINE void store(T* p) const { std::memcpy(p, &v, sizeof(Raw)); }

  // Load and store of the first n lanes. A load sets the other lanes to zero.
  RNNKERN_INLINE static Vec load(const T* p, int64_t n) { return n >= width ? load(p) : Vec(load_first(p, n)); }
  RNNKERN_INLINE void store(T* p, int64_t n) const {
    if (n >= width) return store(p);
    store_first(v, p, n);
  }

  // The lane count of a full vector, as a compile-time constant: the comparisons with `width` are optimized away.
  static constexpr std::integral_constant<int64_t, width> all{};

  RNNKERN_INLINE friend Vec operator-(Vec a) { return -a.v; }
  RNNKERN_INLINE friend Vec operator+(Vec a, Vec b) { return a.v + b.v; }
  RNNKERN_INLINE friend Vec operator-(Vec a, Vec b) { return a.v - b.v; }
  RNNKERN_INLINE friend Vec operator*(Vec a, Vec b) { return a.v * b.v; }
  RNNKERN_INLINE friend Vec operator/(Vec a, Vec b) { return a.v / b.v; }
  RNNKERN_INLINE friend RawBits operator<(Vec a, Vec b) { return a.v < b.v; }
  RNNKERN_INLINE friend RawBits operator<=(Vec a, Vec b) { return a.v <= b.v; }
  RNNKERN_INLINE friend RawBits operator>(Vec a, Vec b) { return a.v > b.v; }
  RNNKERN_INLINE friend RawBits operator>=(Vec a, Vec b) { return a.v >= b.v; }
  RNNKERN_INLINE friend RawBits operator==(Vec a, Vec b) { return a.v == b.v; }

  // Takes lanes of a where the condition holds, and lanes of b elsewhere.
  RNNKERN_INLINE friend Vec select(RawBits condition, Vec a, Vec b) { return Vec(condition ? a.v : b.v); }

  RNNKERN_INLINE friend Vec abs(Vec a) { return Vec((Raw)((RawBits)a.v & ~(RawBits{} + Lanes<T>::sign))); }
  RNNKERN_INLINE friend Vec sqrt(Vec a) {
    for (int k = 0; k < width; ++k) a.v[k] = sizeof(T) == 4 ? __builtin_sqrtf(a.v[k]) : __builtin_sqrt(a.v[k]);
    return a;
  }
  RNNKERN_INLINE friend Vec copysign(Vec magnitude, Vec sign) {
    const RawBits bit = RawBits{} + Lanes<T>::sign;
    return Vec((Raw)(((RawBits)magnitude.v & ~bit) | ((RawBits)sign.v & bit)));
  }
};

// Shuffle masks of one transpose stage that exchanges blocks of `Size` lanes between two vectors. They are constants in
// memory because a compiler would otherwise build them lane by lane at each use.
template <class T, int Size>
struct Sides {
  using Lane = std::remove_const_t<decltype(Lanes<T>::sign)>;
  Lane low[Vec<T>::width], high[Vec<T>::width];

  constexpr Sides() : low(), high() {
    for (int lane = 0; lane < Vec<T>::width; ++lane) {
      low[lane] = lane & Size ? Vec<T>::width + lane - Size : lane;
      high[lane] = lane & Size ? Vec<T>::width + lane : lane + Size;
    }
  }
};

// Transposes a square of `width` vectors: v[i][j] becomes v[j][i]. Stages exchange blocks of 1, 2, 4, ... lanes.
template <class T, int Size = 1>
RNNKERN_INLINE void transpose(Vec<T>* v) {
  using V = Vec<T>;
  if constexpr (Size < V::width) {
    alignas(RNNKERN_VECTOR_BYTES) static constexpr Sides<T, Size> sides;
    typename V::RawBits low, high;
    std::memcpy(&low, sides.low, sizeof(low));
    std::memcpy(&high, sides.high, sizeof(high));
#pragma GCC unroll 16
    for (int i = 0; i < V::width; ++i) {
      if (i & Size) continue;
      const V a = v[i], b = v[i + Size];
      v[i] = V(__builtin_shuffle(a.v, b.v, low));
      v[i + Size] = V(__builtin_shuffle(a.v, b.v, high));
    }
    transpose<T, 2 * Size>(v);
  }
}

}  // namespace
}  // namespace rnnkern
