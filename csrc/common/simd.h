// One SIMD vector type for every level: GCC's vector extension, RNNKERN_VECTOR_BYTES wide. In level files it comes
// after their `#pragma GCC target`; the unnamed namespace keeps each level's code to itself.
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

// 0, 1, 2, ...: a constant in memory, since a compiler would put it together lane by lane, each time.
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

// Which lanes are among the first n; none where n is negative. n fits a lane: it is less than a vector's width, and
// what is below zero is no further below than a few vectors.
template <class T>
RNNKERN_INLINE typename Lanes<T>::RawBits among_first(int64_t n) {
  return numbered<T>() < typename Lanes<T>::RawBits{} + typename Numbers<T>::Lane(n);
}

// The first n lanes in memory, n less than all of them: the others read as zero and are not written. Neither touches
// what lies beyond, which may be another thread's or no memory at all.
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
  RNNKERN_INLINE explicit Vec(S x) : v(T(x) - Raw{}) {}  // nothing is left of - 0; + 0 would have to turn -0 into 0

  RNNKERN_INLINE static Vec load(const T* p) {
    Vec x;
    std::memcpy(&x.v, p, sizeof(Raw));
    return x;
  }
  RNNKERN_INLINE void store(T* p) const { std::memcpy(p, &v, sizeof(Raw)); }

  // The first n lanes; the others read as zero and are not written.
  RNNKERN_INLINE static Vec load(const T* p, int64_t n) { return n >= width ? load(p) : Vec(load_first(p, n)); }
  RNNKERN_INLINE void store(T* p, int64_t n) const {
    if (n >= width) return store(p);
    store_first(v, p, n);
  }

  // All lanes, where a number of them is asked for: a constant, so that nothing is left of the question.
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

  // Lanes of a where the condition holds, of b elsewhere.
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

// Which lanes of two vectors change sides in a transpose, for blocks of so many lanes: constants, since a compiler
// would put them together lane by lane, each time.
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

// v[i][j] becomes v[j][i], for as many vectors as a vector has lanes: blocks of 1, 2, 4, ... lanes change sides.
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
