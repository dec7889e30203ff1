// What products multiply: vectors of T, or where the processor has an instruction for it, pairs of bfloat16, each the
// product of two factors by two, summed in float32. Once per SIMD level.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/simd.h"
#include "cpu/storage.h"
#include "device/types.h"

namespace rnnkern {
namespace {

// Whether rows of F are multiplied in their storage format, as pairs.
#if RNNKERN_BFLOAT16_DOTS
template <class F>
constexpr bool has_bf16_dot = std::is_same_v<F, device::bfloat16>;
#else
template <class F>
constexpr bool has_bf16_dot = false;
#endif

// Elements of a row that one multiply instruction consumes.
template <class F>
constexpr int k_pack = has_bf16_dot<F> ? 2 : 1;

// Two bfloat16 values per lane, the first in the low half.
struct Pairs {
  Bits bits;

  RNNKERN_INLINE static Pairs load(const float* p) { return {(Bits)Vec<float>::load(p).v}; }
};

// broadcast() copies k_pack elements of a row to every lane. broadcast_first() has one element, with a zero in place of
// the second.
template <class T>
RNNKERN_INLINE Vec<T> broadcast(const T* p) {
  return Vec<T>(*p);
}

RNNKERN_INLINE Pairs broadcast(const device::bfloat16* p) {
  uint32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return {Bits{} + pair};
}

RNNKERN_INLINE Pairs broadcast_first(const device::bfloat16* p) { return {Bits{} + uint32_t(p->bits)}; }

// broadcast() of a row of which `elements` remain.
template <class F>
RNNKERN_INLINE auto broadcast_of(const F* p, int64_t elements) {
  if constexpr (has_bf16_dot<F>)
    if (elements < k_pack<F>) return broadcast_first(p);
  return broadcast(p);
}

template <class T>
RNNKERN_INLINE Vec<T> add_product(Vec<T> sum, Vec<T> a, Vec<T> b) {
  return sum + a * b;
}

#if RNNKERN_BFLOAT16_DOTS
RNNKERN_INLINE Vec<float> add_product(Vec<float> sum, Pairs a, Pairs b) {
  return Vec<float>(_mm512_dpbf16_ps(sum.v, (__m512bh)a.bits, (__m512bh)b.bits));
}
#endif

// A vector of weights as add_product() takes it.
template <class F>
RNNKERN_INLINE auto factors(Vec<Arithmetic<F>> x) {
  if constexpr (has_bf16_dot<F>)
    return Pairs{(Bits)x.v};
  else
    return x;
}

// Converts the first lanes to bfloat16, in the low half of each lane.
RNNKERN_INLINE Bits low_halves(const float* p, int64_t lanes) { return to_bfloat16(Vec<float>::load(p, lanes)); }
RNNKERN_INLINE Bits low_halves(const device::bfloat16* p, int64_t lanes) { return widen_words(load_words(p, lanes)); }

// Loads the first `elements` of a row of weights, one per lane, or two per lane for pairs.
template <class F>
RNNKERN_INLINE Vec<Arithmetic<F>> load_factors(const F* p, int64_t elements) {
  if constexpr (has_bf16_dot<F>) {
    constexpr int width = Vec<float>::width;
    const Words halves[] = {load_words(p, elements), load_words(p + width, elements - width)};
    Vec<float> pairs;
    std::memcpy(&pairs, halves, sizeof pairs);
    return pairs;
  } else {
    return Vec<F>::load(p, elements);
  }
}

// Interleaves two rows into a vector of pairs. The first call writes the first elements, with zeros in the second
// place; the call for the second row fills them in.
template <class F>
RNNKERN_INLINE void put_half(bool second, const F* from, int64_t lanes, float* pairs) {
  Bits bits = low_halves(from, lanes);
  if (second) bits = (bits << 16) | Pairs::load(pairs).bits;
  as_floats(bits).store(pairs);
}

}  // namespace
}  // namespace rnnkern
