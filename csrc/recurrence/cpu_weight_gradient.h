// The gradient of a weight: sums over rows of dr^T h, a block of rows at a time while the loop over time still has them
// in cache. Included by cpu_kernels.h, once per SIMD level.
#pragma once

#include "recurrence/cpu_product.h"
#include "recurrence/cpu_sequence.h"

namespace rnnkern {
namespace {

constexpr int gradient_tile_rows(int vectors) { return max_rows(vectors) < 6 ? max_rows(vectors) : 6; }

// out[i][j] += sum over rows k of a[k][i] b[k][j], b dense; where two go together, pairs of rows. A block is summed by
// itself before it is added to what is there: errors grow with the length of a block and the number of blocks, not with
// their product.
template <class F, int Rows, int Vectors, class T = Arithmetic<F>>
void outer_tile(int count, const F* const* a, int64_t a_column, const T* b, T* out, int64_t out_stride) {
  using V = Vec<T>;
  V sum[Rows][Vectors];
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) {
      sum[i][j] = V(0);
      __builtin_prefetch(out + i * out_stride + j * V::width, 1);  // the sums outgrow the near caches
    }
  }
  for (int k = 0; k < count; ++k) {
    const F* x = a[k] + a_column * together<F>;
    add_products<Factors<F>>(sum, [&](int i) { return spread(x + i * together<F>); }, b + k * Vectors * V::width);
  }
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) {
      T* to = out + i * out_stride + j * V::width;
      (V::load(to) + sum[i][j]).store(to);
    }
  }
}

template <class F, class T = Arithmetic<F>>
using OuterTile = void (*)(int, const F* const*, int64_t, const T*, T*, int64_t);

template <class F, int Vectors, int... Row>
constexpr OuterTile<F> outer_tile_of(int rows, std::integer_sequence<int, Row...>) {
  constexpr OuterTile<F> of[] = {outer_tile<F, Row + 1, Vectors>...};
  return of[rows - 1];
}

template <class F>
OuterTile<F> outer_tile_of(int rows, int vectors) {
  switch (vectors) {
    case 1:
      return outer_tile_of<F, 1>(rows, std::make_integer_sequence<int, gradient_tile_rows(1)>());
    case 2:
      return outer_tile_of<F, 2>(rows, std::make_integer_sequence<int, gradient_tile_rows(2)>());
    case 3:
      return outer_tile_of<F, 3>(rows, std::make_integer_sequence<int, gradient_tile_rows(3)>());
    default:
      return outer_tile_of<F, 4>(rows, std::make_integer_sequence<int, gradient_tile_rows(4)>());
  }
}

template <class T>
int64_t padded_columns(const Matrix<T>& matrix) {
  return (matrix.columns + Vec<T>::width - 1) / Vec<T>::width * Vec<T>::width;
}

// One member's sum: rows of dr (first to last unit of some gates) against rows of the operand of their product.
template <class F>
class WeightGradient {
  using T = Arithmetic<F>;
  using V = Vec<T>;

 public:
  // `sums` is (K, G*U, padded C), zero at the start; `room` is room_size() elements.
  WeightGradient(const Matrix<T>& matrix, int first_gate, int gates, int64_t unit0, int64_t unit1, T* sums, T* room)
      : matrix_(matrix),
        columns_(padded_columns(matrix)),
        first_gate_(first_gate),
        gates_(gates),
        unit0_(unit0),
        unit1_(unit1),
        sums_(sums),
        operand_(room) {}

  static int64_t room_size(const Matrix<T>& matrix) {
    return operand_size(matrix) + (dots<F> ? chunk_rows / 2 * pairs_stride(matrix) : 0);
  }

  // So many rows come before they are flushed: blocks of like size.
  void expect(int64_t rows) {
    const int64_t blocks = (rows + chunk_rows - 1) / chunk_rows;
    block_ = blocks ? int((rows + blocks - 1) / blocks) : 0;
  }

  // The row of dr must stay until the flush.
  template <class S>
  void add(const F* dr, const S* operand) {
    const int row = count_ / together<F>;
    const bool second = count_ % together<F>;
    if constexpr (dots<F>) {
      T* const pairs = operand_ + operand_size(matrix_) + row * pairs_stride(matrix_);
      for (int g = first_gate_; g < first_gate_ + gates_; ++g)
        for (int64_t unit = unit0_; unit < unit1_; unit += V::width) {
          const int64_t column = g * matrix_.heads * matrix_.units + unit;
          put_half(second, dr + column, unit1_ - unit, pairs + column);
        }
      dr = reinterpret_cast<const F*>(pairs);
    }
    dr_[row] = dr;
    for (int64_t head = 0; head < matrix_.heads; ++head) {
      for (int64_t v = 0; v < vectors(); v += max_vectors) {
        const int in_panel = int(smaller(max_vectors, vectors() - v));
        T* to = panel(head, v) + row * in_panel * V::width;
        for (int j = 0; j < in_panel; ++j) {
          const int64_t column = (v + j) * V::width;
          const S* const from = operand + head * matrix_.columns + column;
          if constexpr (dots<F>)
            put_half(second, from, matrix_.columns - column, to + j * V::width);
          else
            load(from, matrix_.columns - column).store(to + j * V::width);
        }
      }
    }
    if (++count_ == block_) flush();
  }

  void flush() {
    for (int64_t head = unit0_ / matrix_.units; count_ && head * matrix_.units < unit1_; ++head) {
      for (int64_t v = 0; v < vectors(); v += max_vectors) flush(head, v);
    }
    count_ = 0;
  }

 private:
  static int64_t operand_size(const Matrix<T>& matrix) {
    return chunk_rows / together<F> * matrix.heads * padded_columns(matrix);
  }
  static int64_t pairs_stride(const Matrix<T>& matrix) { return matrix.gates * matrix.heads * matrix.units + V::width; }
  int64_t vectors() const { return columns_ / V::width; }
  T* panel(int64_t head, int64_t vector) const {
    return operand_ + (head * columns_ + vector * V::width) * (chunk_rows / together<F>);
  }

  // A panel of columns, for all units of the head that are this member's.
  void flush(int64_t head, int64_t v) {
    const int in_panel = int(smaller(max_vectors, vectors() - v)), most = gradient_tile_rows(in_panel);
    const int count = (count_ + together<F> - 1) / together<F>;
    const int64_t units = matrix_.units, begin = larger(unit0_ - head * units, 0);
    const int64_t end = smaller(unit1_ - head * units, units);
    for (int g = first_gate_; g < first_gate_ + gates_; ++g) {
      T* out = sums_ + (head * matrix_.gates + g) * units * columns_ + v * V::width;
      const int64_t dr_column = (g * matrix_.heads + head) * units;
      for (int64_t j = begin; j < end; j += most) {
        const int rows = int(smaller(most, end - j));
        outer_tile_of<F>(rows, in_panel)(count, dr_, dr_column + j, panel(head, v), out + j * columns_, columns_);
      }
    }
  }

  Matrix<T> matrix_;
  int64_t columns_;
  int first_gate_, gates_;
  int64_t unit0_, unit1_;
  T *sums_, *operand_;
  int count_ = 0, block_ = chunk_rows;
  const F* dr_[chunk_rows];
};

// A gradient as (rows, columns), in parts that members add to and then add up: the gradient itself where all of them
// fill different rows of the one part.
template <class T>
struct Parts {
  T* gradient;
  int count;
  int64_t rows, columns, padded;
  T* sums;

  Parts(T* gradient, int count, int64_t rows, int64_t columns, int64_t padded, Room<T>& room)
      : gradient(gradient),
        count(count),
        rows(rows),
        columns(columns),
        padded(padded),
        sums(!gradient || (count == 1 && padded == columns) ? gradient : room.take(count * rows * padded)) {}

  Parts(T* gradient, int count, const Matrix<T>& matrix, Room<T>& room)
      : Parts(gradient, count, matrix.gates * matrix.heads * matrix.units, matrix.columns, padded_columns(matrix),
              room) {}

  // Zeros, and the part that a member adds to.
  T* begin(Member me) const {
    if (!gradient) return nullptr;
    const int64_t size = rows * padded, mine = count == 1 ? 0 : me.rank;
    const int64_t first = count == 1 ? size * me.rank / me.size : 0;
    clear(sums + mine * size + first, (count == 1 ? size * (me.rank + 1) / me.size : size) - first);
    return sums + mine * size;
  }

  // A member's share of the rows.
  void add_up(Member me) const {
    using V = Vec<T>;
    if (sums == gradient) return;
    for (int64_t row = rows * me.rank / me.size; row < rows * (me.rank + 1) / me.size; ++row) {
      for (int64_t j = 0; j < columns; j += V::width) {
        const T* from = sums + row * padded + j;
        V sum = V::load(from, columns - j);
        for (int part = 1; part < count; ++part) sum = sum + V::load(from + part * rows * padded, columns - j);
        sum.store(gradient + row * columns + j, columns - j);
      }
    }
  }
};

}  // namespace
}  // namespace rnnkern
