// Products of rows with a matrix that is packed once per call. Included once per SIMD level.
#pragma once

#include "cpu/gemm.h"
#include "cpu/kernel.h"

namespace rnnkern {
namespace {

constexpr int panel_vectors = 3;  // maximum: with 4 rows, the tile of sab, all accumulators are used

// The right factor of products, packed in panels of similar widths.
template <class T>
struct Packed {
  using V = Vec<T>;

  int64_t depth, columns;
  T* panels;

  Packed() = default;
  Packed(int64_t depth, int64_t columns, T* panels) : depth(depth), columns(columns), panels(panels) {}
  Packed(int64_t depth, int64_t columns, Workspace<T>& workspace)
      : Packed(depth, columns, workspace.alloc(size(depth, columns))) {}

  static int64_t size(int64_t depth, int64_t columns) { return depth * padded<T>(columns); }
  int64_t vectors() const { return padded<T>(columns) / V::width; }
  int64_t count() const { return (vectors() + panel_vectors - 1) / panel_vectors; }
  int64_t first_column(int64_t panel) const { return vectors() * panel / count() * V::width; }

  // Packs this thread's part of rows first_row... of the matrix, at(k, j). All threads of the team must call it.
  template <class At>
  void pack(int64_t first_row, int64_t rows, At at, ThreadContext me) const {
    for (int64_t p = me.rank; p < count(); p += me.size) {
      const int64_t first = first_column(p), last = first_column(p + 1);
      T* to = panels + first * depth + first_row * (last - first);
      for (int64_t k = 0; k < rows; ++k)
        for (int64_t j = first; j < last; ++j) *to++ = j < columns ? at(k, j) : T(0);
    }
  }
  void pack(const T* matrix, ThreadContext me) const {
    pack(0, depth, [&](int64_t k, int64_t j) { return matrix[k * columns + j]; }, me);
  }
  void pack_transposed(const T* matrix, ThreadContext me) const {
    pack(0, depth, [&](int64_t k, int64_t j) { return matrix[j * depth + k]; }, me);
  }

  // to(i) = (add ? to(i) : 0) + from(i) times the matrix, for rows row0..row1-1.
  template <class From, class To>
  void multiply(int64_t row0, int64_t row1, From from, To to, bool add = false) const {
    alignas(64) static constexpr T zeros[panel_vectors * V::width] = {};
    alignas(64) T results[accumulators * V::width];
    const T* a[accumulators];
    for (int64_t p = 0; p < count(); ++p) {
      const int64_t first = first_column(p), last = first_column(p + 1), vectors = (last - first) / V::width;
      const int64_t blocks = (row1 - row0 + max_rows(vectors) - 1) / max_rows(vectors);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = row0 + (row1 - row0) * block / blocks, end = row0 + (row1 - row0) * (block + 1) / blocks;
        for (int64_t row = begin; row < end; ++row) a[row - begin] = from(row);
        tile_of<ProductTile, T>(end - begin, vectors)(a, 1, 0, depth, panels + first * depth, zeros, results);
        for (int64_t row = begin; row < end; ++row) {
          const T* const result = results + (row - begin) * (last - first);
          T* const out = to(row) + first;
          for_vectors<V>(0, smaller(last, columns) - first, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
            const V product = V::load(result + j);
            (add ? V::load(out + j, lanes) + product : product).store(out + j, lanes);
          });
        }
      }
    }
  }
};

// Pointers to rows at a fixed stride.
template <class T>
struct Dense {
  T* begin;
  int64_t stride;

  T* operator()(int64_t row) const { return begin + row * stride; }
};

}  // namespace
}  // namespace rnnkern
