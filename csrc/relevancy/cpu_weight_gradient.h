// Gradients of matrices: sums over rows of outer products, in the same order whoever computes them. Included by
// cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

// to (columns, n) = (add ? to : 0) + left^T right, where left is (rows, columns).
template <class T>
struct OuterProduct {
  const T* left;
  int64_t columns;
  T* to;
  bool add;
};

constexpr int64_t panel_bytes = 1 << 17;  // of right factors, a part of a core's cache

template <class T>
int64_t rows_at_once(int64_t n) {
  return larger(16, panel_bytes / int64_t(sizeof(T)) / larger(1, padded<T>(n)));
}

template <class T>
int64_t outer_product_room(int64_t n) {
  return rows_at_once<T>(n) * ((n + tile_columns<T> - 1) / tile_columns<T>)*tile_columns<T>;
}

// All of them with the same right factor, whose rows right(row) are n long. Members share out columns of the left ones;
// each has a room of its own.
template <class T, class Right>
void outer_products(const OuterProduct<T>* products, int count, int64_t rows, int64_t n, Right right, T* room,
                    Member me) {
  const T* a[tile_rows];
  T* out[tile_rows];
  const int64_t most = rows_at_once<T>(n);
  for (int64_t first = 0; first < larger(rows, 1); first += most) {
    const int64_t depth = larger(0, smaller(rows - first, most));
    for (int64_t k = 0; k < depth; ++k) {
      const T* from = right(first + k);
      for (int64_t column = 0; column < n; column += tile_columns<T>) {
        const int64_t lanes = smaller(n - column, tile_columns<T>);
        T* to = room + column * most + k * tile_columns<T>;
        std::memcpy(to, from + column, sizeof(T) * lanes);
        std::memset(to + lanes, 0, sizeof(T) * (tile_columns<T> - lanes));
      }
    }
    int64_t item = 0;
    for (int which = 0; which < count; ++which) {
      const OuterProduct<T>& product = products[which];
      for (int64_t i0 = 0; i0 < product.columns; i0 += tile_rows, ++item) {
        if (item % me.size != me.rank) continue;
        const int64_t wide = smaller(product.columns - i0, tile_rows);
        for (int64_t i = 0; i < wide; ++i) a[i] = product.left + first * product.columns + i0 + i;
        for (int64_t column = 0; column < n; column += tile_columns<T>) {
          for (int64_t i = 0; i < wide; ++i) out[i] = product.to + (i0 + i) * n + column;
          tile_of<T>(wide)(a, product.columns, room + column * most, depth, out, n - column, product.add || first > 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace rnnkern
