// Products of square matrices. Each factor is a linear combination of matrices, computed while it is packed; results
// are combined with other matrices while they are stored. Included once per SIMD level.
#pragma once

#include "cpu/gemm.h"
#include "cpu/kernel.h"
#include "orthogonal/cpu/problem.h"

namespace rnnkern {
namespace {

template <class T>
struct Term {
  const T* x;
  T factor;
  bool transposed;
};

// A linear combination of matrices and the identity.
template <class T>
struct Sum {
  Term<T> terms[most_products + 1];
  int count = 0;
  T identity = T(0);

  Sum() = default;
  Sum(const T* x, bool transposed = false) { add(x, T(1), transposed); }

  void add(const T* x, T factor, bool transposed = false) {
    if (factor != T(0)) terms[count++] = {x, factor, transposed};
  }
  Sum transpose() const {
    Sum flipped = *this;
    for (int k = 0; k < count; ++k) flipped.terms[k].transposed = !terms[k].transposed;
    return flipped;
  }
  bool straight() const {
    for (int k = 0; k < count; ++k)
      if (terms[k].transposed) return false;
    return true;
  }
};

// A result of a product: to = factor * product + rest. Terms of the rest may include `to`, and are not transposed.
template <class T>
struct Output {
  T* to;
  T factor = T(1);
  Sum<T> rest;
};

// v[r][c] = sum(row + r, column + c) for a square block of a vector's width; zeros outside the matrix.
template <class T>
RNNKERN_INLINE void block(const Sum<T>& sum, int64_t n, int64_t row, int64_t column, Vec<T>* v) {
  using V = Vec<T>;
  const int64_t rows = smaller(n - row, V::width), columns = smaller(n - column, V::width);
  bool straight = false, flipped = false;
  V u[V::width];
  for (int k = 0; k < sum.count; ++k) {
    const auto [x, factor, transposed] = sum.terms[k];
    V* const to = transposed ? u : v;
    bool& begun = transposed ? flipped : straight;
    if (!begun) {
      for (int r = 0; r < V::width; ++r) to[r] = V(0);
    }
    begun = true;
    const int64_t lines = transposed ? columns : rows, lanes = transposed ? rows : columns;
    const T* from = transposed ? x + column * n + row : x + row * n + column;
    for (int64_t r = 0; r < lines; ++r) to[r] = to[r] + V(factor) * V::load(from + r * n, lanes);
  }
  if (flipped) {
    transpose(u);
    for (int r = 0; r < V::width; ++r) v[r] = straight ? v[r] + u[r] : u[r];
  }
  if (sum.identity != T(0)) {
    for (int64_t r = 0; r < rows; ++r) {
      if (const int64_t c = row + r - column; c >= 0 && c < columns) v[r].v[c] += sum.identity;
    }
  }
}

constexpr int tile_vectors = 2;
constexpr int tile_rows = max_rows(tile_vectors);
template <class T>
constexpr int tile_columns = tile_vectors * Vec<T>::width;

// Distance of the packed columns of a left factor: whole vectors.
constexpr int left_columns = (tile_rows + Vec<float>::width - 1) / Vec<float>::width * Vec<float>::width;

// Stores a vector of T as U.
template <class T, class U>
RNNKERN_INLINE void store_as(Vec<T> v, U* to) {
  if constexpr (std::is_same_v<T, U>) {
    v.store(to);
  } else {
    for (int c = 0; c < Vec<T>::width; ++c) to[c] = U(v.v[c]);
  }
}

// `form` below for a sum of `Terms` terms, without its identity. Elements outside the matrix are whatever follows in
// memory, or zeros; their products are not stored.
template <int Terms, class T, class U>
void form(const Sum<T>& sum, int64_t n, int64_t row, int64_t rows, int64_t column, int64_t columns, int64_t stride,
          U* out) {
  using V = Vec<T>;
  for (int64_t r = row; r < row + rows; ++r, out += stride) {
    for (int64_t c = column; c < column + columns; c += V::width) {
      V x(0);
      if (r < n && c < n) {
#pragma GCC unroll 4
        for (int k = 0; k < Terms; ++k)
          x = x + V(sum.terms[k].factor) * V::load(sum.terms[k].x + r * n + c, (n - r) * n - c);
      }
      store_as(x, out + c - column);
    }
  }
}

// out[r * stride + c] = sum(row + r, column + c), for a sum without transposed terms; writes whole vectors.
template <class T, class U>
void form(const Sum<T>& sum, int64_t n, int64_t row, int64_t rows, int64_t column, int64_t columns, int64_t stride,
          U* out) {
  constexpr void (*forms[])(const Sum<T>&, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, U*) = {
      form<0, T, U>, form<1, T, U>, form<2, T, U>, form<3, T, U>, form<4, T, U>};
  static_assert(std::size(forms) == most_products + 1);
  forms[sum.count](sum, n, row, rows, column, columns, stride, out);
  if (sum.identity == T(0)) return;
  const int64_t end = smaller(smaller(row + rows, column + columns), n);
  for (int64_t i = larger(row, column); i < end; ++i) out[(i - row) * stride + i - column] += sum.identity;
}

// out[k * Width + c] = sum(k, column + c).
template <int Width, class T, class U>
void pack(const Sum<T>& sum, int64_t n, int64_t column, U* out) {
  using V = Vec<T>;
  constexpr int blocks = Width / V::width;
  static_assert(Width % V::width == 0);
  if (sum.straight()) return form(sum, n, 0, n, column, Width, Width, out);
  V v[blocks][V::width];
  for (int64_t row = 0; row < n; row += V::width) {
    for (int b = 0; b < blocks; ++b) {
      if (column + b * V::width < n) {
        block(sum, n, row, column + b * V::width, v[b]);
      } else {
        for (int r = 0; r < V::width; ++r) v[b][r] = V(0);
      }
    }
    for (int64_t r = 0; r < smaller(V::width, n - row); ++r)
      for (int b = 0; b < blocks; ++b) store_as(v[b][r], out + (row + r) * Width + b * V::width);
  }
}

// out = a b, for one tile. The rows of a are `stride` apart or, if not InRows, its columns are contiguous, as packed.
template <bool InRows, class T>
void tile(int64_t depth, const T* a, int64_t stride, const T* b, T* out) {
  using V = Vec<T>;
  RegisterTile<T, tile_rows, tile_vectors> tile;
  tile.clear();
  constexpr int near = 3;  // rows that one address register reaches
  const T* rows[tile_rows / near];
#pragma GCC unroll 4
  for (int i = 0; i < tile_rows / near; ++i) rows[i] = a + i * near * stride;
  for (int64_t k = 0; k < depth; ++k, a += left_columns, b += tile_columns<T>)
    tile.add([&](int i) RNNKERN_INLINE_LAMBDA { return V(InRows ? rows[i / near][i % near * stride + k] : a[i]); }, b);
  tile.each([&](int i, int j, V& sum) RNNKERN_INLINE_LAMBDA { sum.store(out + i * tile_columns<T> + j * V::width); });
}

// Prefetches the elements that will be read and written when a tile is stored, while its product is computed: hardware
// prefetchers do not follow a few cache lines of each row.
template <class T>
RNNKERN_INLINE void fetch(const Output<T>& output, int64_t n, int64_t row, int64_t column, int64_t columns) {
  constexpr int64_t line = 64 / sizeof(T);
  const int64_t end = smaller(row + tile_rows, n);
  for (int64_t i = row; i < end; ++i) {
    for (int64_t j = column; j < smaller(column + columns, n); j += line) {
      __builtin_prefetch(output.to + i * n + j, 1, 2);
      for (int k = 0; k < output.rest.count; ++k) __builtin_prefetch(output.rest.terms[k].x + i * n + j, 0, 2);
    }
  }
}

// Stores a tile of a product, for a rest with `Terms` terms, without its identity.
template <int Terms, class T>
void store(const Output<T>& output, int64_t n, int64_t row, int64_t column, const T* tile, int64_t columns) {
  using V = Vec<T>;
  const int64_t end = smaller(row + tile_rows, n);
  for (int64_t i = row; i < end; ++i, tile += columns) {
    for (int64_t j = column; j < smaller(column + columns, n); j += V::width) {
      V x = V(output.factor) * V::load(tile + j - column);
#pragma GCC unroll 4
      for (int k = 0; k < Terms; ++k)
        x = x + V(output.rest.terms[k].factor) * V::load(output.rest.terms[k].x + i * n + j, n - j);
      x.store(output.to + i * n + j, n - j);
    }
  }
}

// Stores a tile of a product, `columns` wide.
template <class T>
void store(const Output<T>& output, int64_t n, int64_t row, int64_t column, const T* tile, int64_t columns) {
  constexpr void (*stores[])(const Output<T>&, int64_t, int64_t, int64_t, const T*, int64_t) = {
      store<0, T>, store<1, T>, store<2, T>, store<3, T>, store<4, T>};
  static_assert(std::size(stores) == most_products + 1);
  stores[output.rest.count](output, n, row, column, tile, columns);
  if (output.rest.identity == T(0)) return;
  const int64_t end = smaller(smaller(row + tile_rows, column + columns), n);
  for (int64_t i = larger(row, column); i < end; ++i) output.to[i * n + i] += output.rest.identity;
}

// How the factors of products in U are packed: the right one once for all threads, the left one by each thread, some
// rows at a time.
template <class U>
struct Layout {
  static constexpr int64_t most_left = 1 << 18;  // bytes, part of a core's cache

  int64_t panels, panel, stride, each, left_panels, left;

  explicit Layout(int64_t n) {
    panels = (n + tile_columns<U> - 1) / tile_columns<U>;
    panel = tile_columns<U> * n;
    stride = (n + 31) / 16 * 16;  // a multiple of the vector width; consecutive rows start in different cache sets
    each = larger(tile_rows * stride, left_columns * n);
    left_panels = larger(1, smaller(most_left / int64_t(sizeof(U)) / each, (n + tile_rows - 1) / tile_rows));
    left = left_panels * each;
  }
  int64_t bytes(int team) const { return (panels * panel + 15) / 16 * 16 * sizeof(U) + left * team * sizeof(U); }
};

template <class T>
struct Factors {
  int64_t n;
  T* workspace;

  Factors(int64_t n, Workspace<T>& cut, int team) : n(n) {
    workspace = cut.alloc(larger(Layout<T>(n).bytes(team), Layout<double>(n).bytes(team)) / int64_t(sizeof(T)));
  }
};

// Computes the outputs of left * right, with sums in U; no output may be a term of `left`. All threads of the team must
// call it; all outputs are complete when it returns. For a symmetric result only tiles that meet the lower
// triangle are computed.
template <class U, bool Symmetric = false, class T>
void product(const Factors<T>& factors, const Sum<T>& left, const Sum<T>& right, const Output<T>* outputs, int count,
             ThreadContext me) {
  const int64_t n = factors.n, rows = (n + tile_rows - 1) / tile_rows;
  const Layout<U> layout(n);
  U* const packed = reinterpret_cast<U*>(factors.workspace);
  U* const mine = packed + (layout.panels * layout.panel + 15) / 16 * 16 + me.rank * layout.left;
  const Sum<T> flipped = left.transpose();
  const bool in_rows = left.straight();
  alignas(64) U sums[tile_rows * tile_columns<U>];
  alignas(64) T out[tile_rows * tile_columns<U>];
  for (int64_t p = me.rank; p < layout.panels; p += me.size)
    pack<tile_columns<U>>(right, n, p * tile_columns<U>, packed + p * layout.panel);
  me.barrier();
  // Tiles row by row, so that two threads may share a row; for a triangle, about the same area for each thread.
  const auto share = [&](int rank) {
    return Symmetric ? int64_t(double(rows) * std::sqrt(double(rank) / me.size) + 0.5) * layout.panels
                     : rows * layout.panels * rank / me.size;
  };
  const int64_t first = share(me.rank), last = share(me.rank + 1);
  const int64_t last_row = (last + layout.panels - 1) / layout.panels;
  for (int64_t begin = first / layout.panels; begin < last_row; begin += layout.left_panels) {
    const int64_t end = smaller(begin + layout.left_panels, last_row);
    for (int64_t i = begin; i < end; ++i) {
      U* const to = mine + (i - begin) * layout.each;
      if (in_rows)
        form(left, n, i * tile_rows, tile_rows, 0, n, layout.stride, to);
      else
        pack<left_columns>(flipped, n, i * tile_rows, to);
    }
    for (int64_t p = 0; p < layout.panels; ++p) {
      for (int64_t i = begin; i < end; ++i) {
        if (const int64_t at = i * layout.panels + p; at < first || at >= last) continue;
        if (Symmetric && p * tile_columns<U> >= (i + 1) * tile_rows) continue;
        for (int k = 0; k < count; ++k) fetch(outputs[k], n, i * tile_rows, p * tile_columns<U>, tile_columns<U>);
        const U *const a = mine + (i - begin) * layout.each, *const b = packed + p * layout.panel;
        if (in_rows)
          tile<true>(n, a, layout.stride, b, sums);
        else
          tile<false>(n, a, layout.stride, b, sums);
        const T* found = out;
        if constexpr (std::is_same_v<T, U>) {
          found = sums;
        } else {
          for (int k = 0; k < tile_rows * tile_columns<U>; ++k) out[k] = T(sums[k]);
        }
        for (int k = 0; k < count; ++k)
          store(outputs[k], n, i * tile_rows, p * tile_columns<U>, found, tile_columns<U>);
      }
    }
  }
  me.barrier();
}

}  // namespace
}  // namespace rnnkern
