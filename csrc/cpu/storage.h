// Loads and stores that convert between the storage dtype of a row and the dtype of its arithmetic. Compiled once per
// SIMD level.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/simd.h"
#include "device/types.h"

namespace rnnkern {

using device::Arithmetic;

namespace {

// Load and store of the first lanes, like those of Vec: a load sets the other lanes to zero.
template <class T>
RNNKERN_INLINE Vec<T> load(const T* p, int64_t lanes) {
  return Vec<T>::load(p, lanes);
}

template <class T>
RNNKERN_INLINE void store(Vec<T> x, T* p, int64_t lanes) {
  x.store(p, lanes);
}

// 16 bits per lane, with as many lanes as a vector of floats.
typedef uint16_t Words __attribute__((vector_size(RNNKERN_VECTOR_BYTES / 2)));
typedef uint32_t Bits __attribute__((vector_size(RNNKERN_VECTOR_BYTES)));

// Load and store of the first n lanes as in common/simd.h, for n less than all lanes.
#if RNNKERN_VECTOR_BYTES == 64

RNNKERN_INLINE Words load_first_words(const uint16_t* p, int64_t n) {
  return (Words)_mm256_maskz_loadu_epi16(first_mask<float>(n), p);
}

RNNKERN_INLINE void store_first_words(Words x, uint16_t* p, int64_t n) {
  _mm256_mask_storeu_epi16(p, first_mask<float>(n), (__m256i)x);
}

#elif RNNKERN_VECTOR_BYTES == 32

typedef uint64_t Fours __attribute__((vector_size(16)));  // four lanes in each element

// AVX2 has no masked access for 16-bit lanes. Copying four, two and one lanes takes a third of the time of a loop over
// lanes if at least four are present.
RNNKERN_INLINE Words load_first_words(const uint16_t* p, int64_t n) {
  if (n <= 0) return Words{};
  uint64_t rest = n & 1 ? p[n - 1] : 0;
  if (n & 2) {
    uint32_t two;
    std::memcpy(&two, p + (n & 4), sizeof two);
    rest = rest << 32 | two;
  }
  if (!(n & 4)) return (Words)Fours{rest, 0};
  uint64_t four;
  std::memcpy(&four, p, sizeof four);
  return (Words)Fours{four, rest};
}

RNNKERN_INLINE void store_first_words(Words x, uint16_t* p, int64_t n) {
  if (n <= 0) return;
  const Fours both = (Fours)x;
  uint64_t rest = both[0];
  if (n & 4) {
    std::memcpy(p, &rest, 8);
    p += 4;
    rest = both[1];
  }
  if (n & 2) {
    std::memcpy(p, &rest, 4);
    p += 2;
    rest >>= 32;
  }
  if (n & 1) *p = rest;
}

#else

RNNKERN_INLINE Words load_first_words(const uint16_t* p, int64_t n) {
  Words x{};
  for (int64_t k = 0; k < n; ++k) x[k] = p[k];
  return x;
}

RNNKERN_INLINE void store_first_words(Words x, uint16_t* p, int64_t n) {
  for (int64_t k = 0; k < n; ++k) p[k] = x[k];
}

#endif

RNNKERN_INLINE Words load_words(const void* p, int64_t lanes) {
  if (lanes < Vec<float>::width) return load_first_words(static_cast<const uint16_t*>(p), lanes);
  Words x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

RNNKERN_INLINE void store_words(Words x, void* p, int64_t lanes) {
  if (lanes < Vec<float>::width) return store_first_words(x, static_cast<uint16_t*>(p), lanes);
  std::memcpy(p, &x, sizeof x);
}

RNNKERN_INLINE Bits widen_words(Words x) { return __builtin_convertvector(x, Bits); }
RNNKERN_INLINE Words narrow_words(Bits x) { return __builtin_convertvector(x, Words); }
RNNKERN_INLINE Vec<float> as_floats(Bits x) { return Vec<float>((Lanes<float>::Raw)x); }

RNNKERN_INLINE Vec<float> load(const device::bfloat16* p, int64_t lanes) {
  return as_floats(widen_words(load_words(p, lanes)) << 16);
}

// Rounds to nearest, ties to even. NaN stays NaN.
RNNKERN_INLINE Bits to_bfloat16(Vec<float> x) {
  const Bits bits = (Bits)x.v, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return x == x ? rounded : (bits >> 16) | 0x40;
}

RNNKERN_INLINE void store(Vec<float> x, device::bfloat16* p, int64_t lanes) {
  store_words(narrow_words(to_bfloat16(x)), p, lanes);
}

#if RNNKERN_VECTOR_BYTES > 16

#if RNNKERN_VECTOR_BYTES == 64
constexpr __mmask16 every = 0xffff;  // GCC 12 warns about the intrinsics without a mask
#endif

RNNKERN_INLINE Vec<float> load(const device::float16* p, int64_t lanes) {
#if RNNKERN_VECTOR_BYTES == 64
  return Vec<float>(_mm512_maskz_cvtph_ps(every, (__m256i)load_words(p, lanes)));
#else
  return Vec<float>(_mm256_cvtph_ps((__m128i)load_words(p, lanes)));
#endif
}

RNNKERN_INLINE void store(Vec<float> x, device::float16* p, int64_t lanes) {
#if RNNKERN_VECTOR_BYTES == 64
  store_words((Words)_mm512_maskz_cvtps_ph(every, x.v, _MM_FROUND_TO_NEAREST_INT), p, lanes);
#else
  store_words((Words)_mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT), p, lanes);
#endif
}

#else

RNNKERN_INLINE Vec<float> load(const device::float16* p, int64_t lanes) {
  const Bits x = widen_words(load_words(p, lanes)), magnitude = x & 0x7fff;
  // The last bit of 0.5 + magnitude 2^-24 is 2^-24. As float32 the difference is not subnormal.
  const Bits subnormal = (Bits)(as_floats(magnitude + 0x3f000000) - Vec<float>(0.5f)).v;
  const Bits normal = (magnitude << 13) + 0x38000000, special = (magnitude << 13) | 0x7f800000;
  const Bits finite = magnitude < 0x400 ? subnormal : normal;
  return as_floats((magnitude < 0x7c00 ? finite : special) | ((x & 0x8000) << 16));
}

RNNKERN_INLINE void store(Vec<float> x, device::float16* p, int64_t lanes) {
  const Bits bits = (Bits)x.v, magnitude = bits & 0x7fffffff;
  // Adding 0.5 leaves the multiple of 2^-24 that is nearest in the low bits.
  const Bits subnormal = (Bits)(as_floats(magnitude) + Vec<float>(0.5f)).v - 0x3f000000;
  const Bits normal = (magnitude + 0xc8000fff + ((magnitude >> 13) & 1)) >> 13;
  const Bits special = magnitude > 0x7f800000 ? Bits{} + 0x7e00 : Bits{} + 0x7c00;
  const Bits finite = magnitude < 0x38800000 ? subnormal : normal;
  const Bits result = magnitude < 0x47800000 ? finite : special;
  store_words(narrow_words(result | ((bits >> 16) & 0x8000)), p, lanes);
}

#endif

template <class S, class T>
void widen(const S* from, int64_t elements, T* to) {
  for (int64_t j = 0; j < elements; j += Vec<T>::width) load(from + j, elements - j).store(to + j, elements - j);
}

template <class S, class T>
void narrow_row(const T* from, int64_t elements, S* to) {
  for (int64_t j = 0; j < elements; j += Vec<T>::width)
    store(Vec<T>::load(from + j, elements - j), to + j, elements - j);
}

}  // namespace
}  // namespace rnnkern
