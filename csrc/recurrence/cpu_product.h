// The serial loop's products: rows of a small matrix times R, packed once per call so that every load is a full vector.
// Included by cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

RNNKERN_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
RNNKERN_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// A tile is `rows` x `vectors` accumulators held in registers; the rest of the register file is for operands.
constexpr int accumulators = RNNKERN_VECTOR_REGISTERS == 32 ? 24 : 12;
constexpr int max_vectors = 4;
constexpr int max_rows(int vectors) { return accumulators / vectors; }

// out[i][j] = init[j] + sum over k of a[i][k] w[k][j]. Every row adds up in the same order whatever tile it is in, so
// that results do not depend on how rows are shared out. a[i] is `segments` runs of `length`, `stride` apart; w is
// dense.
template <class T, int Rows, int Vectors>
void tile(const T* const* a, int64_t segments, int64_t stride, int64_t length, const T* w, const T* init, T* out) {
  using V = Vec<T>;
  V sum[Rows][Vectors];
#pragma GCC unroll 4
  for (int j = 0; j < Vectors; ++j) {
    const V start = V::load(init + j * V::width);
#pragma GCC unroll 24
    for (int i = 0; i < Rows; ++i) sum[i][j] = start;
  }
  for (int64_t s = 0; s < segments; ++s) {
    for (int64_t k = s * stride; k < s * stride + length; ++k) {
      V b[Vectors];
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) b[j] = V::load(w + j * V::width);
#pragma GCC unroll 24
      for (int i = 0; i < Rows; ++i) {
        const V x(a[i][k]);
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; ++j) sum[i][j] = sum[i][j] + x * b[j];
      }
      w += Vectors * V::width;
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) sum[i][j].store(out + (i * Vectors + j) * V::width);
}

template <class T>
using Tile = void (*)(const T* const*, int64_t, int64_t, int64_t, const T*, const T*, T*);

template <class T, int Vectors, int... Row>
constexpr Tile<T> tile_of(int rows, std::integer_sequence<int, Row...>) {
  constexpr Tile<T> of[] = {tile<T, Row + 1, Vectors>...};
  return of[rows - 1];
}

template <class T>
Tile<T> tile_of(int rows, int vectors) {
  switch (vectors) {
    case 1:
      return tile_of<T, 1>(rows, std::make_integer_sequence<int, max_rows(1)>());
    case 2:
      return tile_of<T, 2>(rows, std::make_integer_sequence<int, max_rows(2)>());
    case 3:
      return tile_of<T, 3>(rows, std::make_integer_sequence<int, max_rows(3)>());
    default:
      return tile_of<T, 4>(rows, std::make_integer_sequence<int, max_rows(4)>());
  }
}

// A run of units of one head, all gates of the product beside one another.
template <class T>
struct Panel {
  int64_t unit, units;  // first unit, how many there are (the last vector may be partly padding)
  int vectors;          // vectors of units
  int64_t operand;      // first column of the operand
  const T *weights, *init;
};

// One product of the loop: R h for some gates (forward), or R^T dr over some gates (backward).
template <class T>
struct Product {
  static constexpr int width = Vec<T>::width;

  int first_gate, gates;  // of the gates of the cell, those in this product
  bool transposed;
  int64_t heads, d;  // d units per head
  int64_t vectors, panels_per_head;
  int64_t segments, stride, length;  // of the operand, see tile
  T *packed, *init;
  const T* zeros;

  Product(const Weights<T>& w, int first_gate, int gates, bool transposed, int team, T* workspace, const T* zeros)
      : first_gate(first_gate),
        gates(gates),
        transposed(transposed),
        heads(w.heads),
        d(w.hidden / w.heads),
        zeros(zeros) {
    vectors = (d + width - 1) / width;
    const int64_t per_panel = gates ? max_vectors / columns() : 1;  // no gates: a product that the cell does not have
    panels_per_head = (vectors + per_panel - 1) / per_panel;
    if (heads == 1) panels_per_head = smaller((panels_per_head + team - 1) / team * team, vectors);
    segments = transposed && heads > 1 ? gates : 1;
    stride = w.hidden;
    length = transposed && heads == 1 ? gates * d : d;
    packed = workspace;
    init = packed + heads * vectors * width * columns() * depth();
  }

  int columns() const { return transposed ? 1 : gates; }  // vectors of the tile per vector of units
  int64_t depth() const { return segments * length; }
  int64_t panels() const { return heads * panels_per_head; }
  T* end() const { return transposed ? init : init + heads * vectors * width * gates; }

  Panel<T> panel(int64_t index) const {
    const int64_t head = index / panels_per_head, j = index % panels_per_head;
    const int64_t first = vectors * j / panels_per_head, last = vectors * (j + 1) / panels_per_head;
    const int64_t column = (head * vectors + first) * width * columns();
    const int64_t operand = transposed ? first_gate * stride + head * d : head * d;
    return {head * d + first * width,  smaller(last * width, d) - first * width, int(last - first), operand,
            packed + column * depth(), transposed ? zeros : init + column};
  }

  int64_t first_unit(int64_t index) const { return index < panels() ? panel(index).unit : heads * d; }

  // Packs the panels begin..end-1 of R (heads, G*d, d), and of the bias, padding with zeros.
  void pack(const Weights<T>& w, int all_gates, int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      const Panel<T> q = panel(index);
      const int64_t head = index / panels_per_head, unit = q.unit - head * d;
      const T* R = w.R + (head * all_gates + first_gate) * d * d;  // row (gate, unit) from here on
      const int64_t row = q.vectors * columns() * width;
      T* out = const_cast<T*>(q.weights);
      std::memset(out, 0, sizeof(T) * row * depth());
      if (transposed) {
        for (int64_t k = 0; k < depth(); ++k) std::memcpy(out + k * row, R + k * d + unit, sizeof(T) * q.units);
        continue;
      }
      T* bias = const_cast<T*>(q.init);
      std::memset(bias, 0, sizeof(T) * row);
      constexpr int64_t block = 32;  // columns of R at a time: both sides of the transposition stay in the cache
      for (int64_t k0 = 0; k0 < d; k0 += block) {
        for (int64_t u = 0; u < q.units; ++u) {
          for (int g = 0; g < gates; ++g) {
            const int64_t column = (u / width * gates + g) * width + u % width;
            const T* from = R + (g * d + unit + u) * d;
            for (int64_t k = k0; k < smaller(k0 + block, d); ++k) out[k * row + column] = from[k];
            if (k0 == 0 && w.bias) bias[column] = w.bias[(first_gate + g) * heads * d + q.unit + u];
          }
        }
      }
    }
  }

  // For the panels and rows given: the tile of each, then finish(row, panel, results of the row).
  template <class Operand, class Finish>
  RNNKERN_INLINE void run(int64_t panel0, int64_t panel1, int64_t row0, int64_t row1, Operand operand, Finish finish) {
    alignas(64) T out[accumulators * width];
    const T* a[accumulators];
    const int64_t rows = row1 - row0;
    if (rows <= 0) return;
    for (int64_t index = panel0; index < panel1; ++index) {
      const Panel<T> q = panel(index);
      const int tile_vectors = q.vectors * columns();
      const int64_t blocks = (rows + max_rows(tile_vectors) - 1) / max_rows(tile_vectors);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = row0 + rows * block / blocks, end = row0 + rows * (block + 1) / blocks;
        for (int64_t b = begin; b < end; ++b) a[b - begin] = operand(b) + q.operand;
        tile_of<T>(int(end - begin), tile_vectors)(a, segments, stride, length, q.weights, q.init, out);
        for (int64_t b = begin; b < end; ++b) finish(b, q, out + (b - begin) * tile_vectors * width);
      }
    }
  }
};

}  // namespace
}  // namespace rnnkern
