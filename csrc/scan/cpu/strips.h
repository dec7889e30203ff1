// Shared by forward.h, backward.h and moments.h: the columns and steps of a thread and their order, and products of a
// state with a factor, real or complex. Included once per SIMD level.
#pragma once

#include "cpu/fused.h"
#include "cpu/kernel.h"
#include "scan/cpu/problem.h"

namespace rnnkern {
namespace {

constexpr int64_t few_vectors = 8;  // a thread with at most this many processes all steps with the state in registers

// The steps of first..last-1, in processing order, that a group has: sequences end, or in reverse begin, at different
// steps.
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

// The step that comes k-th in processing order.
inline int64_t step_at(const ScanSizes& sizes, int64_t k) { return sizes.reverse ? sizes.steps - 1 - k : k; }

// `count` vectors of columns of a group, of which the last has `lanes` lanes, in the steps first..last-1 in processing
// order.
template <class T, int count_, class Lanes>
struct Block {
  using V = Vec<T>;
  static constexpr int count = count_;

  int64_t group, column, first, last;
  Lanes lanes;

  // The place of the block in a state, or in a row.
  int64_t place(const ScanSizes& sizes) const { return group * sizes.width + column; }
  // Vector i of a row that begins at `from`; zeros if that is null.
  RNNKERN_INLINE V load(const T* from, int i) const { return V::load(from + i * V::width, lanes); }
  RNNKERN_INLINE V load_if(const T* from, int64_t place, int i) const { return from ? load(from + place, i) : V(0); }
  RNNKERN_INLINE void store(V x, T* to, int i) const { x.store(to + i * V::width, lanes); }
};

// Calls f(block) for blocks of this thread's columns and for `few` steps at a time, or all. The calls for a block come
// in the order of the steps, or in reverse if `backward`.
template <class T, bool backward, class F>
void over_blocks(const ScanSizes& sizes, int64_t few, ThreadContext me, F f) {
  using V = Vec<T>;
  constexpr int64_t line = 64 / sizeof(T);
  const int64_t lines = (sizes.width + line - 1) / line;
  const auto [begin, end] = me.share(lines * sizes.groups);
  const bool narrow = (end - begin) * line <= few_vectors * V::width;
  const int64_t tile = narrow ? larger(sizes.steps, 1) : few, tiles = (sizes.steps + tile - 1) / tile;
  for (int64_t done = 0; done < tiles; ++done) {
    const int64_t first = (backward ? tiles - 1 - done : done) * tile, last = smaller(sizes.steps, first + tile);
    for (int64_t at = begin; at < end;) {
      const int64_t group = at / lines, from = at % lines, count = smaller(lines - from, end - at);
      const int64_t stop = smaller(sizes.width, (from + count) * line);
      int64_t column = from * line;
      for (; column + 4 * V::width <= stop; column += 4 * V::width)
        f(Block<T, 4, decltype(V::all)>{group, column, first, last, V::all});
      for (; column + V::width <= stop; column += V::width)
        f(Block<T, 1, decltype(V::all)>{group, column, first, last, V::all});
      if (column < stop) f(Block<T, 1, int64_t>{group, column, first, last, stop - column});
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

// The next state: `next`, or `without`, which has no part of the state s, if s is a complex number of float32 that is
// nearly zero. Its factor would rotate it at a length near 1e-38 for ever, because subnormal numbers are taken for
// zero: where a product becomes zero, the other part does not decrease.
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
