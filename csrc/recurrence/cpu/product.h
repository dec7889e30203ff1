// The GEMMs inside the loop over time: a few rows times R, which is packed once per call so that every load is a full
// vector or tile. Included once per SIMD level.
#pragma once

#include "cpu/gemm.h"
#include "cpu/kernel.h"
#include "recurrence/problem.h"

namespace rnnkern {
namespace {

// to[k][j] = from[j][k] for j < rows and k < columns, both at most a vector's width; for bfloat16, pairs of columns
// take the place of columns. Lanes beyond `rows` are zero.
template <class F, class T>
void transpose(const F* from, int64_t from_stride, int64_t rows, int64_t columns, T* to, int64_t to_stride) {
  using V = Vec<T>;
  V v[V::width];
  for (int j = 0; j < V::width; ++j) v[j] = j < rows ? load_factors(from + j * from_stride, columns) : V(0);
  transpose(v);
  for (int64_t k = 0; k * k_pack<F> < columns; ++k) v[k].store(to + k * to_stride);
}

// A range of outputs of one head: units with all gates of the product side by side, or columns of a transposed product.
template <class T>
struct Panel {
  int64_t unit, units;  // first output, how many there are (the last vector may be partly padding)
  int vectors;          // vectors of outputs
  int64_t operand;      // first column of the operand
  const T *weights, *init;
};

// A product with some gates of a matrix M: M h forward, M^T dr backward. F is the type of the factors.
template <class F>
struct Product {
  using T = Arithmetic<F>;
  static constexpr int width = Vec<T>::width;

  Matrix<T> matrix;
  int first_gate, gates;  // the gates of the matrix that this product has
  bool transposed;
  bool streamed;  // the product runs once: each panel is packed into the same memory, or read without packing
  int64_t outputs, vectors, panels_per_head;
  int64_t segments, stride, length;  // of the operand, see ProductTile
  int parts;                         // the bfloat16 parts of a factor if the product is computed in tiles, or 0
  T *packed = nullptr, *init = nullptr;
  bfloat16* copies = nullptr;  // per thread: rows of the operand as tiles
  const T* zeros;

  // A product in tiles has at most `rows` rows.
  Product(const Matrix<T>& matrix, int first_gate, int gates, bool transposed, bool streamed, Workspace<T>& workspace,
          const T* zeros, ThreadContext me, int parts = 0, int64_t rows = 0)
      : matrix(matrix),
        first_gate(first_gate),
        gates(gates),
        transposed(transposed),
        streamed(streamed),
        parts(in_tiles<F> && gates <= max_vectors ? parts : 0),
        zeros(zeros) {
    outputs = transposed ? matrix.columns : matrix.units;
    vectors = (outputs + width - 1) / width;
    // Without gates the cell does not have this product.
    const int64_t per_panel = gates ? larger(max_vectors / columns(), 1) : 1;
    panels_per_head = (vectors + per_panel - 1) / per_panel;
    if (matrix.heads == 1) panels_per_head = smaller((panels_per_head + me.size - 1) / me.size * me.size, vectors);
    segments = transposed && matrix.heads > 1 ? gates : 1;
    stride = matrix.heads * matrix.units;
    length = !transposed ? matrix.columns : matrix.heads == 1 ? gates * matrix.units : matrix.units;
    if (!matrix.values || !gates) return;
    const int64_t lanes = (streamed ? larger(max_vectors, columns()) : matrix.heads * vectors * columns()) * width;
    packed = streamed ? workspace.alloc(lanes * depth(), me) : workspace.alloc_lasting(lanes * depth());
    init = streamed ? workspace.alloc(lanes, me) : workspace.alloc_lasting(lanes);
    if (this->parts) copies = reinterpret_cast<bfloat16*>(workspace.alloc(rows * depth(), me));
  }

  int columns() const { return transposed ? 1 : gates; }  // vectors of the tile per vector of outputs
  int64_t depth() const {                                 // of what is packed, in vectors
    return segments * (parts ? in_whole_tiles(length) / 2 * parts : (length + k_pack<F> - 1) / k_pack<F>);
  }
  int64_t panels() const { return packed ? matrix.heads * panels_per_head : 0; }

  Panel<T> panel(int64_t index) const {
    const int64_t head = index / panels_per_head, j = index % panels_per_head;
    const int64_t first = vectors * j / panels_per_head, last = vectors * (j + 1) / panels_per_head;
    const int64_t column = streamed ? 0 : (head * vectors + first) * width * columns();
    const int64_t operand = transposed ? first_gate * stride + head * matrix.units : head * matrix.columns;
    return {head * outputs + first * width,
            smaller(last * width, outputs) - first * width,
            int(last - first),
            operand,
            packed + column * depth(),
            transposed ? zeros : init + column};
  }

  int64_t first_unit(int64_t index) const { return index < panels() ? panel(index).unit : matrix.heads * outputs; }

  // Packs a thread's share of the panels. All threads need all panels.
  void pack(ThreadContext me) const {
    if (streamed) return;
    const int64_t all = panels();
    for (int64_t index = all * me.rank / me.size; index < all * (me.rank + 1) / me.size; ++index) {
      pack(panel(index), index / panels_per_head);
    }
  }

  // Computes the product for the given panels and rows, and calls finish(row, panel, results of the row). Results are
  // vectors of units, with all gates of a vector side by side.
  template <class Operand, class Finish>
  RNNKERN_INLINE void run(int64_t panel0, int64_t panel1, int64_t row0, int64_t row1, Operand operand,
                          Finish finish) const {
    alignas(64) T out[in_tiles<F> ? Tile::block_rows * max_vectors * width : most_results * width];
    const F* a[accumulators];
    const int64_t rows = row1 - row0;
    if (rows <= 0) return;
    [[maybe_unused]] TileBlocks<F> tiles;
    [[maybe_unused]] LeftTiles left;
    int ahead = 0;  // panels from this one on whose results are at the end of those of `together`
    for (int64_t index = panel0; index < panel1; ++index) {
      const Panel<T> q = panel(index);
      if constexpr (in_tiles<F>)
        if (parts && (index == panel0 || index % panels_per_head == 0))
          left = tiles.left(
              row0, row1, [&](int64_t b) { return operand(b) + q.operand; }, segments, stride, length, parts, copies);
      if (rows == 1 && !parts && !streamed && !transposed && !ahead && run_together(index, panel1, operand(row0), out))
        ahead = together;
      const bool unpacked = streamed && !parts && rows <= rows_to_read;
      if (streamed && !unpacked) pack(q, index / panels_per_head);
      const int tile_vectors = q.vectors * columns();
      const int most = parts ? Tile::block_rows : unpacked ? rows_to_read_of(tile_vectors) : max_rows(tile_vectors);
      const int64_t blocks = (rows + most - 1) / most;
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = row0 + rows * block / blocks, end = row0 + rows * (block + 1) / blocks;
        const T* results = out;
        if (ahead) {
          results += (together - ahead--) * tile_vectors * width;
        } else if (parts) {
          if constexpr (in_tiles<F>)
            tiles.multiply(int(end - begin), tile_vectors, parts, left.from(begin - row0),
                           {q.weights, Tile::of_block * width * depth()}, q.init, 0, out, tile_vectors * width);
        } else {
          for (int64_t b = begin; b < end; ++b) a[b - begin] = operand(b) + q.operand;
          if (unpacked)
            read_once(int(end - begin), q, index / panels_per_head, a, out);
          else if (tile_vectors <= max_vectors)
            tile_of<ProductTile, F>(int(end - begin), tile_vectors)(a, segments, stride, length, q.weights, q.init,
                                                                    out);
          else
            run_in_groups(int(end - begin), q, a, out);
        }
        // One inlined call site: a function call would take as long as the equations.
        for (int64_t b = begin; b < end; ++b) finish(b, q, results + (b - begin) * tile_vectors * width);
      }
    }
  }

 private:
  static constexpr int together = accumulators >= 4 * max_vectors ? 4 : 2;

  // One row waits for the weights, which arrive faster from several places at once: the products of a row with several
  // panels of the same shape, if there are so many.
  [[gnu::noinline]] bool run_together(int64_t index, int64_t panel1, const F* row, T* out) const {
    if (index + together > panel1) return false;
    const T *weights[together], *starts[together];
    const Panel<T> first = panel(index);
    for (int j = 0; j < together; ++j) {
      const Panel<T> q = panel(index + j);
      if (q.vectors != first.vectors || q.operand != first.operand) return false;
      weights[j] = q.weights, starts[j] = q.init;
    }
    const F* const a = row + first.operand;
    switch (first.vectors * columns()) {
      case 1:
        return several<F, 1, together>(a, length, weights, starts, out);
      case 2:
        return several<F, 2, together>(a, length, weights, starts, out);
      case 3:
        return several<F, 3, together>(a, length, weights, starts, out);
      case 4:
        return several<F, 4, together>(a, length, weights, starts, out);
    }
    return false;
  }

  static constexpr int rows_to_read = 4;  // with more rows packing pays
  static constexpr int most_results =
      accumulators < rows_to_read * max_vectors ? rows_to_read * max_vectors : accumulators;  // vectors of a block

  // A vector of units may have so many gates that the results of fewer rows fill a block.
  static int rows_to_read_of(int tile_vectors) { return int(smaller(rows_to_read, most_results / tile_vectors)); }

  // The gates of this product, (gates, units, columns), of a head.
  const F* values(int64_t head) const {
    return static_cast<const F*>(matrix.values) + (head * matrix.gates + first_gate) * matrix.units * matrix.columns;
  }

  // Gates go through the tile in groups of at most max_vectors, each of which is packed by itself.
  int group_size(int first) const { return int(smaller(max_vectors, gates - first)); }

  [[gnu::noinline]] void run_in_groups(int rows, const Panel<T>& q, const F* const* a, T* out) const {
    alignas(64) T some[accumulators * width];
    for (int first = 0; first < gates; first += max_vectors) {
      const int64_t size = group_size(first) * width;
      tile_of<ProductTile, F>(rows, group_size(first))(a, segments, stride, length, q.weights + first * width * depth(),
                                                       q.init + first * width, some);
      for (int row = 0; row < rows; ++row)
        std::memcpy(out + (int64_t(row) * gates + first) * width, some + row * size, sizeof(T) * size);
    }
  }

  // The results of a few rows from weights that are not packed: a square of weights is transposed and multiplied at
  // once. The order of additions is that of ProductTile.
  void read_once(int rows, const Panel<T>& q, int64_t head, const F* const* a, T* out) const {
    if (rows == 1) return read_once<1>(q, head, a, out);
    if (rows == 2) return read_once<2>(q, head, a, out);
    if (rows == 3) return read_once<3>(q, head, a, out);
    read_once<4>(q, head, a, out);
  }

  template <int Rows>
  void read_once(const Panel<T>& q, int64_t head, const F* const* a, T* out) const {
    using V = Vec<T>;
    constexpr int64_t most = width * k_pack<F>;
    const int64_t first = q.unit - head * outputs, units = matrix.units, depth = matrix.columns;
    const F* const values = this->values(head);
    for (int column = 0; column < q.vectors * gates; ++column) {
      const int g = column % gates;
      const int64_t unit = first + column / gates * width, lanes = smaller(units - unit, width);
      const F* const from = values + (g * units + unit) * depth;
      V start(T(0));
      if (matrix.bias) start = V::load(matrix.bias + (first_gate + g) * stride + head * units + unit, lanes);
      RegisterTile<F, Rows, 1> tile;
      tile.each([&](int, int, V& sum) RNNKERN_INLINE_LAMBDA { sum = has_bf16_dot<F> ? V(0) : start; });
      int64_t k = 0;
      if (lanes >= width)
        for (; k + most <= depth; k += most) {
          V square[width];
#pragma GCC unroll 16
          for (int j = 0; j < width; ++j) square[j] = V::load(reinterpret_cast<const T*>(from + j * depth + k));
          transpose(square);
#pragma GCC unroll 16
          for (int j = 0; j < width; ++j)
#pragma GCC unroll 4
            for (int i = 0; i < Rows; ++i)
              tile.sum[i][0] = add_product(tile.sum[i][0], broadcast(a[i] + k + j * k_pack<F>), factors<F>(square[j]));
        }
      for (; k < depth; k += most) {
        alignas(64) T square[width * width];
        transpose(from + k, depth, lanes, smaller(depth - k, most), square, width);
        for (int64_t j = 0; j < most && k + j < depth; j += k_pack<F>)
          tile.add([&](int i) RNNKERN_INLINE_LAMBDA { return broadcast_of(a[i] + k + j, depth - k - j); },
                   square + j / k_pack<F> * width);
      }
      tile.each([&](int i, int, V& sum) RNNKERN_INLINE_LAMBDA {
        if (has_bf16_dot<F>) sum = sum + start;
        sum.store(out + (int64_t(i) * q.vectors * gates + column) * width);
      });
    }
  }

  // Packs one panel as tiles, with zeros up to whole ones.
  void pack_tiles(const Panel<T>& q, const F* values, int64_t first, T* out) const {
    const int64_t vectors = q.vectors * columns(), pairs = in_whole_tiles(length) / 2, depth = matrix.columns;
    for (int part = 0; part < parts; ++part) {
      auto at = [&](int64_t v, int64_t pair) {
        const int64_t first = v / Tile::of_block * Tile::of_block;
        return out + (first * this->depth() + v - first) * width +
               RightTiles::row(pair, part, parts, smaller(vectors - first, Tile::of_block));
      };
      for (int64_t pair = 0; transposed && pair < segments * pairs; ++pair)
        for (int v = 0; v < q.vectors; ++v) {
          auto half = [&](int64_t k) {
            const F* from = values + (pair / pairs * length + k) * depth + first + v * width;
            return k < length ? part_of(from, q.units - v * width, part) : Bits{};
          };
          as_pairs(half(pair % pairs * 2), half(pair % pairs * 2 + 1)).store(at(v, pair));
        }
      for (int64_t v = 0; !transposed && v < vectors; ++v) {
        const int64_t unit = first + v / gates * width;
        const F* from = values + (v % gates * matrix.units + unit) * depth;
        for (int64_t k = 0; k < length; k += Tile::depth) {
          Vec<T> square[width];
          for (int j = 0; j < width; ++j)
            square[j] = unit + j < matrix.units ? row_of_pairs(from + j * depth + k, length - k, part) : Vec<T>(0);
          transpose(square);
          for (int j = 0; j < width; ++j) square[j].store(at(v, k / 2 + j));
        }
      }
    }
  }

  // Packs one panel of the matrix and of the bias, padded with zeros.
  void pack(const Panel<T>& q, int64_t head) const {
    const int64_t first = q.unit - head * outputs, units = matrix.units, depth = matrix.columns;
    const F* values = this->values(head);
    T* out = const_cast<T*>(q.weights);
    if constexpr (in_tiles<F>)
      if (parts) pack_tiles(q, values, first, out);
    if (transposed && parts) return;
    if (transposed) {
      const int64_t row = q.vectors * width;
      const bool padded = q.units < q.vectors * width;
      for (int64_t k = 0; k < segments * length; ++k) {
        const F* from = values + k * depth + first;
        if constexpr (has_bf16_dot<F>) {
          const bool second = k % length % 2;
          if (k && !second) out += row;
          for (int64_t j = 0; j < row; j += width) put_half(second, from + j, q.units - j, out + j);
        } else {
          if (padded) std::memset(out + k * row, 0, sizeof(T) * row);
          std::memcpy(out + k * row, from, sizeof(T) * q.units);
        }
      }
      return;
    }
    T* bias = const_cast<T*>(q.init);
    const bool in_groups = gates > max_vectors;  // then a panel has one vector of units
    for (int g = 0; g < gates; ++g) {
      const int group = in_groups ? g / max_vectors * max_vectors : 0;
      const int64_t row = (in_groups ? group_size(group) : q.vectors * gates) * width;
      T* const to = out + group * width * this->depth();
      for (int v = 0; v < q.vectors; ++v) {
        const int64_t unit = first + v * width, column = (int64_t(v) * gates + g - group) * width;
        const int64_t lanes = smaller(units - unit, width);
        const F* from = values + (g * units + unit) * depth;
        constexpr int64_t most = width * k_pack<F>;
        for (int64_t k = 0; k < depth && !parts; k += most)
          transpose(from + k, depth, lanes, smaller(depth - k, most), to + k / k_pack<F> * row + column, row);
        Vec<T> start(T(0));
        if (matrix.bias) start = Vec<T>::load(matrix.bias + (first_gate + g) * stride + head * units + unit, lanes);
        start.store(bias + group * width + column);
      }
    }
  }
};

}  // namespace
}  // namespace rnnkern
