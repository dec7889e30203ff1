// Gradient of a weight: the sum over rows of dr^T h, computed in blocks of rows while they are in cache. Compiled once
// per SIMD level.
#pragma once

#include "cpu/gemm.h"
#include "cpu/kernel.h"

namespace rnnkern {
namespace {

constexpr int block_rows = 128;  // maximum rows per block

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
  // `sums` is (K, G*U, padded C) and must be zero; `workspace` has workspace_size() elements.
  WeightGradient(const WeightSizes& sizes, int first_gate, int gates, int64_t unit0, int64_t unit1, T* sums,
                 T* workspace)
      : sizes_(sizes),
        columns_(padded<T>(sizes.columns)),
        first_gate_(first_gate),
        gates_(gates),
        unit0_(unit0),
        unit1_(unit1),
        sums_(sums),
        operand_(workspace) {}

  static int64_t workspace_size(const WeightSizes& sizes) {
    return operand_size(sizes) + (has_bf16_dot<F> ? block_rows / 2 * pairs_stride(sizes) : 0);
  }

  // Sets the number of rows that will be added until the next flush, which is divided into blocks of similar size.
  void expect(int64_t rows) {
    const int64_t blocks = (rows + block_rows - 1) / block_rows;
    block_ = blocks ? int((rows + blocks - 1) / blocks) : 0;
  }

  // The row of dr must stay valid until the flush.
  template <class S>
  void add(const F* dr, const S* operand) {
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
    for (int64_t head = unit0_ / sizes_.units; count_ && head * sizes_.units < unit1_; ++head) {
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

  // Adds one panel of columns, for all units of the head that belong to this thread.
  void flush(int64_t head, int64_t v) {
    const int in_panel = int(smaller(max_vectors, vectors() - v)), most = outer_rows(in_panel);
    const int count = (count_ + k_pack<F> - 1) / k_pack<F>;
    const int64_t units = sizes_.units, begin = larger(unit0_ - head * units, 0);
    const int64_t end = smaller(unit1_ - head * units, units);
    for (int g = first_gate_; g < first_gate_ + gates_; ++g) {
      T* out = sums_ + (head * sizes_.gates + g) * units * columns_ + v * V::width;
      const int64_t dr_column = (g * sizes_.heads + head) * units;
      for (int64_t j = begin; j < end; j += most) {
        const int rows = int(smaller(most, end - j));
        tile_of<OuterTile, F>(rows, in_panel)(count, dr_, dr_column + j, panel(head, v), out + j * columns_, columns_);
      }
    }
  }

  WeightSizes sizes_;
  int64_t columns_;
  int first_gate_, gates_;
  int64_t unit0_, unit1_;
  T *sums_, *operand_;
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
