// Register-tiled microkernel of all matrix products on the CPU, and the tiles that the recurrence and relevancy kernels
// build from it. Every sum runs over k in the same order whatever the tile, so results do not depend on how rows are
// divided among threads. Compiled once per SIMD level.
#pragma once

#include <utility>

#include "common/simd.h"
#include "cpu/factors.h"
#include "cpu/tiles.h"

namespace rnnkern {
namespace {

// A tile holds `rows` x `vectors` accumulators in registers; the remaining registers hold operands.
constexpr int accumulators = RNNKERN_VECTOR_REGISTERS == 32 ? 24 : 12;
constexpr int max_vectors = 4;
constexpr int max_rows(int vectors) { return accumulators / vectors; }
constexpr int outer_rows(int vectors) { return max_rows(vectors) < 6 ? max_rows(vectors) : 6; }

template <class F, int Rows, int Vectors>
struct RegisterTile {
  using T = Arithmetic<F>;
  using V = Vec<T>;
  static constexpr int columns = Vectors * V::width;

  V sum[Rows][Vectors];

  // Calls f(i, j, sum[i][j]) for every accumulator.
  template <class Each>
  RNNKERN_INLINE void each(Each f) {
#pragma GCC unroll 24
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) f(i, j, sum[i][j]);
  }

  RNNKERN_INLINE void clear() {
    each([](int, int, V& sum) RNNKERN_INLINE_LAMBDA { sum = V(0); });
  }

  // sum[i][j] += a(i) w[j]. a(i) is an element of the left factor broadcast to all lanes; w is contiguous.
  template <class A>
  RNNKERN_INLINE void add(A a, const T* w) {
    using W = decltype(a(0));
    W b[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) b[j] = W::load(w + j * V::width);
#pragma GCC unroll 24
    for (int i = 0; i < Rows; ++i) {
      const W x = a(i);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) sum[i][j] = add_product(sum[i][j], x, b[j]);
    }
  }
};

// out[i][j] = init[j] + sum over k of a[i][k] w[k][j]. a[i] consists of `segments` runs of `length` elements, `stride`
// apart; w and out are contiguous. Sums of pairs start at zero and add `init` last, because the bfloat16 instruction
// flushes subnormal numbers to zero and init may contain some.
template <class F, int Rows, int Vectors>
struct ProductTile {
  using T = Arithmetic<F>;
  static constexpr int most_rows = max_rows(Vectors);

  static void run(const F* const* a, int64_t segments, int64_t stride, int64_t length, const T* w, const T* init,
                  T* out) {
    using V = Vec<T>;
    RegisterTile<F, Rows, Vectors> tile;
    tile.each([&](int, int j, V& sum)
                  RNNKERN_INLINE_LAMBDA { sum = has_bf16_dot<F> ? V(0) : V::load(init + j * V::width); });
    for (int64_t s = 0; s < segments; ++s) {
      int64_t k = s * stride;
      const int64_t end = k + length;
      for (; k <= end - k_pack<F>; k += k_pack<F>, w += tile.columns)
        tile.add([&](int i) RNNKERN_INLINE_LAMBDA { return broadcast(a[i] + k); }, w);
      if constexpr (has_bf16_dot<F>) {
        if (k == end) continue;
        tile.add([&](int i) RNNKERN_INLINE_LAMBDA { return broadcast_first(a[i] + k); }, w);
        w += tile.columns;
      }
    }
    tile.each([&](int i, int j, V& sum) RNNKERN_INLINE_LAMBDA {
      if (has_bf16_dot<F>) sum = sum + V::load(init + j * V::width);
      sum.store(out + (i * Vectors + j) * V::width);
    });
  }
};

// The products of one row with several w of the same shape, after each other in `out`.
template <class F, int Vectors, int Count>
bool several(const F* a, int64_t length, const Arithmetic<F>* const* w, const Arithmetic<F>* const* init,
             Arithmetic<F>* out) {
  using V = Vec<Arithmetic<F>>;
  RegisterTile<F, 1, Vectors> tiles[Count];
#pragma GCC unroll 4
  for (int c = 0; c < Count; ++c)
    tiles[c].each([&](int, int j, V& sum)
                      RNNKERN_INLINE_LAMBDA { sum = has_bf16_dot<F> ? V(0) : V::load(init[c] + j * V::width); });
  int64_t k = 0, at = 0;
  for (; k <= length - k_pack<F>; k += k_pack<F>, at += Vectors * V::width)
#pragma GCC unroll 4
    for (int c = 0; c < Count; ++c)
      tiles[c].add([&](int) RNNKERN_INLINE_LAMBDA { return broadcast(a + k); }, w[c] + at);
  if constexpr (has_bf16_dot<F>)
    for (int c = 0; c < Count && k < length; ++c)
      tiles[c].add([&](int) RNNKERN_INLINE_LAMBDA { return broadcast_first(a + k); }, w[c] + at);
#pragma GCC unroll 4
  for (int c = 0; c < Count; ++c)
    tiles[c].each([&](int, int j, V& sum) RNNKERN_INLINE_LAMBDA {
      if (has_bf16_dot<F>) sum = sum + V::load(init[c] + j * V::width);
      sum.store(out + (c * Vectors + j) * V::width);
    });
  return true;
}

// out[i][j] += sum over rows k of a[k][i] b[k][j]. b is contiguous; for bfloat16 pairs, k counts pairs of rows. Each
// block of rows is summed separately before it is added to `out`, so rounding errors grow with the block length plus
// the number of blocks, not with their product.
template <class F, int Rows, int Vectors>
struct OuterTile {
  using T = Arithmetic<F>;
  static constexpr int most_rows = outer_rows(Vectors);

  static void run(int count, const F* const* a, int64_t a_column, const T* b, T* out, int64_t out_stride) {
    using V = Vec<T>;
    RegisterTile<F, Rows, Vectors> tile;
    tile.each([&](int i, int j, V& sum) RNNKERN_INLINE_LAMBDA {
      sum = V(0);
      __builtin_prefetch(out + i * out_stride + j * V::width, 1);  // the output does not fit in L1/L2
    });
    for (int k = 0; k < count; ++k) {
      const F* x = a[k] + a_column * k_pack<F>;
      tile.add([&](int i) RNNKERN_INLINE_LAMBDA { return broadcast(x + i * k_pack<F>); }, b + k * tile.columns);
    }
    tile.each([&](int i, int j, V& sum) RNNKERN_INLINE_LAMBDA {
      T* to = out + i * out_stride + j * V::width;
      (V::load(to) + sum).store(to);
    });
  }
};

// Selects the instantiation of a tile for a number of rows (and of vectors).
template <template <class, int, int> class Kind, class F, int Vectors>
auto tile_of(int rows) {
  return [rows]<int... Row>(std::integer_sequence<int, Row...>) {
    static constexpr decltype(&Kind<F, 1, 1>::run) of[] = {Kind<F, Row + 1, Vectors>::run...};
    return of[rows - 1];
  }(std::make_integer_sequence<int, Kind<F, 1, Vectors>::most_rows>());
}

template <template <class, int, int> class Kind, class F>
auto tile_of(int rows, int vectors) {
  switch (vectors) {
    case 1:
      return tile_of<Kind, F, 1>(rows);
    case 2:
      return tile_of<Kind, F, 2>(rows);
    case 3:
      return tile_of<Kind, F, 3>(rows);
    default:
      return tile_of<Kind, F, 4>(rows);
  }
}

}  // namespace
}  // namespace rnnkern
