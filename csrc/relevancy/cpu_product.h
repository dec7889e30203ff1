// Products of rows with a matrix that is packed once per call. Every row adds up in the same order whatever tile it is
// in, so that results do not depend on how samples are shared out. Included by cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

constexpr int tile_vectors = 2;
constexpr int tile_rows = (RNNKERN_VECTOR_REGISTERS == 32 ? 24 : 12) / tile_vectors;
template <class T>
constexpr int64_t tile_columns = tile_vectors * Vec<T>::width;

template <class T>
constexpr int64_t padded(int64_t n) {
  return (n + Vec<T>::width - 1) / Vec<T>::width * Vec<T>::width;
}

// out[i][j] = (add ? out[i][j] : 0) + sum over k of a[i][k * stride] w[k][j], for the first `lanes` columns of a tile.
template <class T, int Rows>
void tile(const T* const* a, int64_t stride, const T* w, int64_t depth, T* const* out, int64_t lanes, bool add) {
  using V = Vec<T>;
  V sum[Rows][tile_vectors];
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < tile_vectors; ++j)
      sum[i][j] = add && lanes > j * V::width ? V::load(out[i] + j * V::width, lanes - j * V::width) : V(0);
  for (int64_t k = 0; k < depth; ++k, w += tile_columns<T>) {
    V y[tile_vectors];
#pragma GCC unroll 2
    for (int j = 0; j < tile_vectors; ++j) y[j] = V::load(w + j * V::width);
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i) {
      const V x(a[i][k * stride]);
#pragma GCC unroll 2
      for (int j = 0; j < tile_vectors; ++j) sum[i][j] = sum[i][j] + x * y[j];
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < tile_vectors; ++j)
      if (lanes > j * V::width) sum[i][j].store(out[i] + j * V::width, lanes - j * V::width);
}

template <class T>
using Tile = void (*)(const T* const*, int64_t, const T*, int64_t, T* const*, int64_t, bool);

template <class T, int... Row>
constexpr Tile<T> tile_of(int64_t rows, std::integer_sequence<int, Row...>) {
  constexpr Tile<T> of[] = {tile<T, Row + 1>...};
  return of[rows - 1];
}

template <class T>
Tile<T> tile_of(int64_t rows) {
  return tile_of<T>(rows, std::make_integer_sequence<int, tile_rows>());
}

// A matrix as the right factor of products, in panels of a tile's columns.
template <class T>
struct Packed {
  int64_t depth, columns;
  T* panels;

  Packed(int64_t depth, int64_t columns, Room<T>& room)
      : depth(depth), columns(columns), panels(room.take(count() * depth * tile_columns<T>)) {}

  int64_t count() const { return (columns + tile_columns<T> - 1) / tile_columns<T>; }

  // A member's share of rows first_row... of the packed matrix, at(k, j); all members need all of it.
  template <class At>
  void pack(int64_t first_row, int64_t rows, At at, Member me) const {
    for (int64_t p = me.rank; p < count(); p += me.size) {
      T* to = panels + (p * depth + first_row) * tile_columns<T>;
      const int64_t lanes = smaller(columns - p * tile_columns<T>, tile_columns<T>);
      for (int64_t k = 0; k < rows; ++k)
        for (int64_t j = 0; j < tile_columns<T>; ++j) *to++ = j < lanes ? at(k, p * tile_columns<T> + j) : T(0);
    }
  }
  void pack(const T* matrix, Member me) const {
    pack(0, depth, [&](int64_t k, int64_t j) { return matrix[k * columns + j]; }, me);
  }
  void pack_transposed(const T* matrix, Member me) const {
    pack(0, depth, [&](int64_t k, int64_t j) { return matrix[j * depth + k]; }, me);
  }

  // to(i) = (add ? to(i) : 0) + from(i) times the matrix, for rows first to last - 1.
  template <class From, class To>
  void multiply(int64_t first, int64_t last, From from, To to, bool add = false) const {
    const T* a[tile_rows];
    T *begin[tile_rows], *out[tile_rows];
    for (; first < last; first += tile_rows) {
      const int64_t rows = smaller(last - first, tile_rows);
      for (int64_t i = 0; i < rows; ++i) a[i] = from(first + i);
      for (int64_t i = 0; i < rows; ++i) begin[i] = to(first + i);
      const Tile<T> run = tile_of<T>(rows);
      for (int64_t p = 0; p < count(); ++p) {
        const int64_t column = p * tile_columns<T>;
        for (int64_t i = 0; i < rows; ++i) out[i] = begin[i] + column;
        run(a, 1, panels + p * depth * tile_columns<T>, depth, out, columns - column, add);
      }
    }
  }
};

// (rows, n) pointers to rows that lie one after the other.
template <class T>
struct Dense {
  T* begin;
  int64_t stride;

  T* operator()(int64_t row) const { return begin + row * stride; }
};

}  // namespace
}  // namespace rnnkern
