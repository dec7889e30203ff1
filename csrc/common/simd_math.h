// Vectorized exponential functions. Maximum errors in ulp, measured by python_tests/ops/test_simd_math.py:
//     float: tanh 3, sigmoid 3;  double: tanh 3, sigmoid 3.
// These hold for all arguments of tanh, and for arguments of sigmoid from -87 (float) or -708 (double) upwards. For
// smaller arguments, sigmoid stays at 1.7e-38 or 3.4e-308 instead of reaching 0. NaN propagates.
#pragma once

#include "common/simd.h"

namespace rnnkern {
namespace {

template <class T>
struct ExpFacts;

template <>
struct ExpFacts<float> {
  static constexpr int mantissa = 23, bias = 127;
  static constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  static constexpr float limit = 87.0f;        // exp(-limit) is still a normal number
  static constexpr float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
  static constexpr int terms = 6;
};

template <>
struct ExpFacts<double> {
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr double round = 6755399441055744.0;
  static constexpr double limit = 708.0;
  static constexpr double ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;
  static constexpr int terms = 12;
};

// exp(x) = scale * (1 + fraction) for |x| <= limit; scale is a power of two.
template <class T>
struct Exp {
  Vec<T> scale, fraction;

  RNNKERN_INLINE explicit Exp(Vec<T> x) {
    using F = ExpFacts<T>;
    using V = Vec<T>;
    const V shifted = x * V(T(1.4426950408889634074)) + V(F::round);
    const V n = shifted - V(F::round);
    const V r = (x - n * V(F::ln2_high)) - n * V(F::ln2_low);
    // Taylor series of (exp(r) - 1 - r) / r^2 on |r| <= ln 2 / 2, evaluated by Horner's scheme.
    T coefficient = T(1);
    for (int k = 2; k <= F::terms + 1; ++k) coefficient /= T(k);
    V series = V(coefficient);
#pragma GCC unroll 16
    for (int k = F::terms; k >= 2; --k) {
      coefficient *= T(k + 1);
      series = series * r + V(coefficient);
    }
    fraction = r + r * r * series;
    const typename V::RawBits exponent =
        ((typename V::RawBits)shifted.v << F::mantissa) + ((typename V::RawBits{} + F::bias) << F::mantissa);
    scale = V((typename V::Raw)exponent);
  }
};

template <class T>
RNNKERN_INLINE Vec<T> tanh(Vec<T> x) {
  using V = Vec<T>;
  const V a = V(0) - (abs(x) + abs(x));
  const V limited = select(a < V(-60), V(-60), a);
  const Exp<T> e(limited);
  // With E = exp(-2|x|): tanh|x| = -(E - 1) / (1 + E) is accurate for small |x|, and 1 - 2 E / (1 + E) for large |x|. E
  // - 1 is computed without cancellation.
  const V minus_one = e.scale * e.fraction + (e.scale - V(1)), exp = e.scale + e.scale * e.fraction;
  const auto small = a > V(-1);
  const V quotient = select(small, V(0) - minus_one, exp + exp) / (V(1) + exp);
  return copysign(select(small, quotient, V(1) - quotient), x);
}

template <class T>
RNNKERN_INLINE Vec<T> sigmoid(Vec<T> x) {
  using V = Vec<T>;
  using F = ExpFacts<T>;
  const V low = select(x < V(-F::limit), V(-F::limit), x);
  const V limited = select(low > V(F::limit), V(F::limit), low);
  const Exp<T> e(V(0) - limited);
  return V(1) / (V(1) + (e.scale + e.scale * e.fraction));
}

// exp(x) and exp(x) - 1. Where |x| exceeds the limit, exp(x) is the square of exp(x / 2), so it reaches 0 and infinity.
template <class T>
RNNKERN_INLINE Vec<T> exp(Vec<T> x) {
  using V = Vec<T>;
  constexpr T limit = ExpFacts<T>::limit;
  const auto inside = abs(x) <= V(limit);
  const V part = select(inside, x, x * V(0.5)), low = select(part < V(-limit), V(-limit), part);
  const Exp<T> e(select(low > V(limit), V(limit), low));
  const V whole = e.scale + e.scale * e.fraction;
  return select(inside, whole, whole * whole);
}

template <class T>
RNNKERN_INLINE Vec<T> expm1(Vec<T> x) {
  using V = Vec<T>;
  constexpr T limit = ExpFacts<T>::limit;
  const V low = select(x < V(-limit), V(-limit), x);
  const Exp<T> e(select(low > V(limit), V(limit), low));
  return select(low > V(limit), exp(x), e.scale * e.fraction + (e.scale - V(1)));
}

// The remaining functions are evaluated lane by lane.
#define RNNKERN_LANE_BY_LANE(name)                                                                           \
  template <class T>                                                                                         \
  RNNKERN_INLINE Vec<T> name(Vec<T> x) {                                                                     \
    for (int k = 0; k < Vec<T>::width; ++k)                                                                  \
      x.v[k] = sizeof(T) == 4 ? T(__builtin_##name##f(float(x.v[k]))) : T(__builtin_##name(double(x.v[k]))); \
    return x;                                                                                                \
  }
RNNKERN_LANE_BY_LANE(log)
RNNKERN_LANE_BY_LANE(log1p)
RNNKERN_LANE_BY_LANE(sin)
RNNKERN_LANE_BY_LANE(cos)
#undef RNNKERN_LANE_BY_LANE

}  // namespace
}  // namespace rnnkern
