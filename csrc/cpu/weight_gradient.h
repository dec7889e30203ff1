// Gradient of a weight: the sum over rows of dr^T h, computed in blocks of rows while they are in cache. Compiled once
// per SIMD level.
#pragma once

#include "cpu/gemm.h"
#include "cpu/kernel.h"

namespace rnnkern {
namespace {

constexpr int block_rows = 128;  // maximum rows per block, in whole tiles

// A weight is (heads, gates * units, columns); each head multiplies its own columns of the operand.
struct WeightSizes {
  int gates;
  int64_t heads, units, columns;

  WeightSizes(int gates, int64_t heads, int64_t units, int64_t columns)
      : gates(gates), heads(heads), units(units), columns(columns) {}
  // From any type that has these members.
  template <class Matrix>
  WeightSizes(const Matrix& matrix) : WeightSizes(matrix.gates, matrix.heads, matrix.units, matrix.columns) {}
};

// One thread's sum: rows of dr (units [unit0, unit1) of some gates) times rows of the operand.
template <class F>
class WeightGradient {
  using T = Arithmetic<F>;
  using V = Vec<T>;

 public:
  // `sums` is (K, G*U, padded C) and must be zero; `workspace` has workspace_size() elements. `parts` is that of
  // Product.
  WeightGradient(const WeightSizes& sizes, int first_gate, int gates, int64_t unit0, int64_t unit1, T* sums,
                 T* workspace, int parts = 0)
      : sizes_(sizes),
        columns_(padded<T>(sizes.columns)),
        first_gate_(first_gate),
        gates_(gates),
        unit0_(unit0),
        unit1_(unit1),
        sums_(sums),
        operand_(workspace),
        parts_(parts) {}

  static int64_t workspace_size(const WeightSizes& sizes, int parts = 0) {
    if (parts) return parts * block_rows / 2 * (sizes.heads * padded<T>(sizes.columns) + Tile::block_rows);
    return operand_size(sizes) + (has_bf16_dot<F> ? block_rows / 2 * pairs_stride(sizes) : 0);
  }

  // Sets the number of rows that will be added until the next flush, which is divided into blocks of similar size.
  void expect(int64_t rows) {
    const int64_t blocks = (rows + block_rows - 1) / block_rows;
    block_ = blocks ? int((rows + blocks - 1) / blocks) : 0;
    if (parts_) block_ = int(in_whole_tiles(block_));
  }

  // The row of dr must stay valid until the flush.
  template <class S>
  void add(const F* dr, const S* operand) {
    if constexpr (in_tiles<F>)
      if (parts_) return add_in_tiles(dr, operand);
    const int row = count_ / k_pack<F>;
    const bool second = count_ % k_pack<F>;
    if constexpr (has_bf16_dot<F>) {
      T* const pairs = operand_ + operand_size(sizes_) + row * pairs_stride(sizes_);
      for (int g = first_gate_; g < first_gate_ + gates_; ++g)
        for (int64_t unit = unit0_; unit < unit1_; unit += V::width) {
          const int64_t column = g * sizes_.heads * sizes_.units + unit;
          put_half(second, dr + column, unit1_ - unit, pairs + column);
        }
      dr = reinterpret_cast<const F*>(pairs);
    }
    dr_[row] = dr;
    for (int64_t head = 0; head < sizes_.heads; ++head) {
      for (int64_t v = 0; v < vectors(); v += max_vectors) {
        const int in_panel = int(smaller(max_vectors, vectors() - v));
        T* to = panel(head, v) + row * in_panel * V::width;
        for (int j = 0; j < in_panel; ++j) {
          const int64_t column = (v + j) * V::width;
          const S* const from = operand + head * sizes_.columns + column;
          if constexpr (has_bf16_dot<F>)
            put_half(second, from, sizes_.columns - column, to + j * V::width);
          else
            load(from, sizes_.columns - column).store(to + j * V::width);
        }
      }
    }
    if (++count_ == block_) flush();
  }

  void flush() {
    if (!count_) return;
    [[maybe_unused]] TileBlocks<F> tiles;
    for (int64_t head = unit0_ / sizes_.units; head * sizes_.units < unit1_; ++head) {
      if constexpr (in_tiles<F>)
        if (parts_) {
          flush_in_tiles(head, tiles);
          continue;
        }
      for (int64_t v = 0; v < vectors(); v += max_vectors) flush(head, v);
    }
    count_ = 0;
  }

 private:
  static int64_t operand_size(const WeightSizes& sizes) {
    return block_rows / k_pack<F> * sizes.heads * padded<T>(sizes.columns);
  }
  static int64_t pairs_stride(const WeightSizes& sizes) { return sizes.gates * sizes.heads * sizes.units + V::width; }
  int64_t vectors() const { return columns_ / V::width; }
  T* panel(int64_t head, int64_t vector) const {
    return operand_ + (head * columns_ + vector * V::width) * (block_rows / k_pack<F>);
  }

  // The units of a head that belong to this thread.
  std::pair<int64_t, int64_t> own_units(int64_t head) const {
    const int64_t units = sizes_.units;
    return {larger(unit0_ - head * units, 0), smaller(unit1_ - head * units, units)};
  }

  // Adds one panel of columns, for all units of the head that belong to this thread.
  void flush(int64_t head, int64_t v) {
    const int in_panel = int(smaller(max_vectors, vectors() - v)), most = outer_rows(in_panel);
    const int count = (count_ + k_pack<F> - 1) / k_pack<F>;
    const int64_t units = sizes_.units;
    const auto [begin, end] = own_units(head);
    for (int g = first_gate_; g < first_gate_ + gates_; ++g) {
      T* out = sums_ + (head * sizes_.gates + g) * units * columns_ + v * V::width;
      const int64_t dr_column = (g * sizes_.heads + head) * units;
      for (int64_t j = begin; j < end; j += most) {
        const int rows = int(smaller(most, end - j));
        tile_of<OuterTile, F>(rows, in_panel)(count, dr_, dr_column + j, panel(head, v), out + j * columns_, columns_);
      }
    }
  }

  // In tiles, the operand is the right factor, a panel for each group of columns; the left one is dr transposed.
  T* panel_in_tiles(int64_t head, int64_t vector) const {
    return operand_ + (head * columns_ + vector * V::width) * (parts_ * block_rows / 2);
  }

  T* row_in_tiles(int64_t head, int64_t vector, int64_t pair, int part) const {
    return panel_in_tiles(head, vector) +
           RightTiles::row(pair, part, parts_, smaller(Tile::of_block, vectors() - vector));
  }

  template <class S>
  void add_in_tiles(const F* dr, const S* operand) {
    dr_[count_] = dr;
    for (int64_t head = 0; head < sizes_.heads; ++head)
      for (int64_t v = 0; v < vectors(); v += Tile::of_block) {
        const int64_t lanes = smaller(Tile::of_block, vectors() - v) * V::width;
        for (int part = 0; part < parts_; ++part) {
          T* const to = row_in_tiles(head, v, count_ / 2, part);
          for (int64_t j = 0; j < lanes; j += V::width) {
            const int64_t column = v * V::width + j;
            const Bits half = part_of(operand + head * sizes_.columns + column, sizes_.columns - column, part);
            as_pairs(count_ % 2 ? Pairs::load(to + j).bits : half, count_ % 2 ? half : Bits{}).store(to + j);
          }
        }
      }
    if (++count_ == block_) flush();
  }

  void flush_in_tiles(int64_t head, TileBlocks<F>& tiles) {
    const auto [begin, end] = own_units(head);
    const int64_t depth = in_whole_tiles(count_);
    bfloat16* const copies = reinterpret_cast<bfloat16*>(panel_in_tiles(sizes_.heads, 0));
    const LeftTiles left{copies, parts_ * block_rows, 1, 0, depth, block_rows};
    for (int64_t v = 0; v < vectors(); v += Tile::of_block) {  // rows that only complete a tile
      const int64_t lanes = smaller(Tile::of_block, vectors() - v) * V::width;
      for (int64_t pair = (count_ + 1) / 2; pair < depth / 2; ++pair)
        for (int part = 0; part < parts_; ++part) std::memset(row_in_tiles(head, v, pair, part), 0, sizeof(T) * lanes);
    }
    for (int g = first_gate_; g < first_gate_ + gates_; ++g)
      for (int64_t j = begin; j < end; j += Tile::block_rows) {
        const int rows = int(smaller(Tile::block_rows, end - j));
        transpose_rows((g * sizes_.heads + head) * sizes_.units + j, rows, depth, copies);
        T* const out = sums_ + ((head * sizes_.gates + g) * sizes_.units + j) * columns_;
        for (int64_t v = 0; v < vectors(); v += Tile::of_block) {
          const int in_panel = int(smaller(Tile::of_block, vectors() - v));
          tiles.multiply(rows, in_panel, parts_, left, {panel_in_tiles(head, v), 0}, out + v * V::width, columns_,
                         out + v * V::width, columns_);
        }
      }
  }

  // Some columns of the rows of dr as rows of tiles.
  void transpose_rows(int64_t column, int columns, int64_t depth, bfloat16* to) const {
    for (int part = 0; part < parts_; ++part)
      for (int64_t k = 0; k < depth; k += Tile::depth)
        for (int first = 0; first < columns; first += V::width) {
          auto half = [&](int64_t row) RNNKERN_INLINE_LAMBDA {
            return row < count_ ? part_of(dr_[row] + column + first, columns - first, part) : Bits{};
          };
          V square[V::width];
          for (int i = 0; i < V::width; ++i) square[i] = as_pairs(half(k + 2 * i), half(k + 2 * i + 1));
          transpose(square);
          for (int i = 0; i < V::width && first + i < columns; ++i)
            std::memcpy(to + ((first + i) * parts_ + part) * block_rows + k, &square[i], sizeof(V));
        }
  }

  WeightSizes sizes_;
  int64_t columns_;
  int first_gate_, gates_;
  int64_t unit0_, unit1_;
  T *sums_, *operand_;
  int parts_;
  int count_ = 0, block_ = block_rows;
  const F* dr_[block_rows];
};

// A gradient (rows, columns) as partial sums that threads accumulate and then reduce. If threads fill different rows,
// there is a single part: the gradient itself.
template <class T>
struct PartialSums {
  T* gradient;
  int count;
  int64_t rows, columns, stride;
  T* sums;

  PartialSums(T* gradient, int count, int64_t rows, int64_t columns, int64_t stride, Workspace<T>& workspace)
      : gradient(gradient),
        count(count),
        rows(rows),
        columns(columns),
        stride(stride),
        sums(!gradient || (count == 1 && stride == columns) ? gradient : workspace.alloc(count * rows * stride)) {}

  PartialSums(T* gradient, int count, const WeightSizes& sizes, Workspace<T>& workspace)
      : PartialSums(gradient, count, sizes.gates * sizes.heads * sizes.units, sizes.columns, padded<T>(sizes.columns),
                    workspace) {}

  // Zeros the part that this thread adds to, and returns it.
  T* begin(ThreadContext me) const {
    if (!gradient) return nullptr;
    const int64_t size = rows * stride, mine = count == 1 ? 0 : me.rank;
    const int64_t first = count == 1 ? size * me.rank / me.size : 0;
    const int64_t last = count == 1 ? size * (me.rank + 1) / me.size : size;
    std::memset(sums + mine * size + first, 0, sizeof(T) * (last - first));
    return sums + mine * size;
  }

  // Reduces this thread's share of the rows.
  void add_up(ThreadContext me) const {
    using V = Vec<T>;
    if (sums == gradient) return;
    for (int64_t row = rows * me.rank / me.size; row < rows * (me.rank + 1) / me.size; ++row) {
      for (int64_t j = 0; j < columns; j += V::width) {
        const T* from = sums + row * stride + j;
        V sum = V::load(from, columns - j);
        for (int part = 1; part < count; ++part) sum = sum + V::load(from + part * rows * stride, columns - j);
        sum.store(gradient + row * columns + j, columns - j);
      }
    }
  }
};

}  // namespace
}  // namespace rnnkern
