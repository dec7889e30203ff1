// Shared by both directions: the columns and steps of a thread and their order, and products of a state with a factor,
// real or complex. Included once per SIMD level.
#pragma once

#include "cpu/fused.h"
#include "cpu/kernel.h"
#include "scan/cpu/problem.h"

namespace rnnkern {
namespace {

constexpr int64_t few_vectors = 8;  // a thread with so few processes all steps at once, with the state in registers

// Those of the steps first..last-1, in processing order, that a group has: sequences end, or in reverse begin, at
// different steps.
struct Span {
  int64_t first, last;

  Span(const ScanSizes& sizes, int64_t group, int64_t first_, int64_t last_) : first(first_), last(last_) {
    const int64_t length = sizes.length(group);
    if (sizes.reverse)
      first = larger(first, sizes.steps - length);
    else
      last = smaller(last, length);
  }
};

inline int64_t step_at(const ScanSizes& sizes, int64_t place) {
  return sizes.reverse ? sizes.steps - 1 - place : place;
}

// Calls f(group, column, vectors, lanes, first, last) for blocks of this thread's columns and steps first..last-1 in
// processing order, `few` of them or all. A block has `vectors` vectors, a constant, of which the last has `lanes`
// lanes. The calls for a block come in the order of the steps, or in reverse if `backward`.
template <class T, bool backward, class F>
void over_blocks(const ScanSizes& sizes, int64_t few, ThreadContext me, F f) {
  using V = Vec<T>;
  constexpr int64_t line = 64 / sizeof(T);
  constexpr std::integral_constant<int, 1> one{};
  constexpr std::integral_constant<int, 4> four{};
  const int64_t lines = (sizes.width + line - 1) / line, all = lines * sizes.groups;
  const int64_t begin = all * me.rank / me.size, end = all * (me.rank + 1) / me.size;
  const bool narrow = (end - begin) * line <= few_vectors * V::width;
  const int64_t tile = narrow ? larger(sizes.steps, 1) : few, tiles = (sizes.steps + tile - 1) / tile;
  for (int64_t done = 0; done < tiles; ++done) {
    const int64_t first = (backward ? tiles - 1 - done : done) * tile, last = smaller(sizes.steps, first + tile);
    for (int64_t at = begin; at < end;) {
      const int64_t group = at / lines, from = at % lines, count = smaller(lines - from, end - at);
      const int64_t stop = smaller(sizes.width, (from + count) * line);
      int64_t column = from * line;
      for (; column + 4 * V::width <= stop; column += 4 * V::width) f(group, column, four, V::all, first, last);
      for (; column + V::width <= stop; column += V::width) f(group, column, one, V::all, first, last);
      if (column < stop) f(group, column, one, stop - column, first, last);
      at += count;
    }
  }
}

// Exchanges the real and imaginary parts.
template <class T>
RNNKERN_INLINE Vec<T> exchanged(Vec<T> x) {
  typename Vec<T>::RawBits places;
  for (int lane = 0; lane < Vec<T>::width; ++lane) places[lane] = lane ^ 1;
  return Vec<T>(__builtin_shuffle(x.v, places));
}

// A factor of a state. For complex numbers: real parts twice, and imaginary parts with the product's signs.
template <bool complex, class T>
struct Factor {
  Vec<T> re, im;

  Factor() = default;
  RNNKERN_INLINE explicit Factor(Vec<T> a, bool conjugate = false) : re(a), im(a) {
    if constexpr (complex) {
      typename Vec<T>::RawBits even, odd;
      typename Vec<T>::Raw signs;
      for (int lane = 0; lane < Vec<T>::width; ++lane) {
        even[lane] = lane & ~1;
        odd[lane] = lane | 1;
        signs[lane] = bool(lane & 1) == conjugate ? T(-1) : T(1);
      }
      re = Vec<T>(__builtin_shuffle(a.v, even));
      im = Vec<T>(__builtin_shuffle(a.v, odd) * signs);
    }
  }

  RNNKERN_INLINE Vec<T> times(Vec<T> s) const {
    if constexpr (complex)
      return fused(im, exchanged(s), re * s);
    else
      return re * s;
  }
  RNNKERN_INLINE Vec<T> times(Vec<T> s, Vec<T> plus) const {
    if constexpr (complex)
      return fused(im, exchanged(s), fused(re, s, plus));
    else
      return fused(re, s, plus);
  }
};

// The next state, `next`, or `without` the state s, if s is a complex number of float32 that is nearly zero. Since
// subnormal numbers are taken for zero, its factor would turn it on a circle near 1e-38 for ever: where a product is
// flushed, the other part does not decrease.
template <bool complex, class T>
RNNKERN_INLINE Vec<T> vanishing(Vec<T> s, Vec<T> next, Vec<T> without) {
  if constexpr (complex && std::is_same_v<T, float>) {
    const Vec<T> size = abs(s), other = exchanged(size);
    return select(select(size < other, other, size) < Vec<T>(0x1p-116f), without, next);
  }
  return next;
}

}  // namespace
}  // namespace rnnkern
