// dR = sum over steps and sequences of dr^T h, block by block of rows while the loop over time still has them in cache.
// Included by cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

constexpr int gradient_tile_rows(int vectors) { return max_rows(vectors) < 6 ? max_rows(vectors) : 6; }

// out[i][j] += sum over rows k of a[k][i] b[k][j]. A block is summed by itself before it is added to what is there:
// errors grow with the length of a block and the number of blocks, not with their product.
template <class T, int Rows, int Vectors>
void outer_tile(int count, const T* const* a, int64_t a_column, const T* const* b, int64_t b_column, T* out,
                int64_t out_stride) {
  using V = Vec<T>;
  V sum[Rows][Vectors];
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) sum[i][j] = V(0);
  for (int k = 0; k < count; ++k) {
    const T *x = a[k] + a_column, *y = b[k] + b_column;
    V row[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) row[j] = V::load(y + j * V::width);
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i) {
      const V scale(x[i]);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) sum[i][j] = sum[i][j] + scale * row[j];
    }
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

template <class T>
using OuterTile = void (*)(int, const T* const*, int64_t, const T* const*, int64_t, T*, int64_t);

template <class T, int Vectors, int... Row>
constexpr OuterTile<T> outer_tile_of(int rows, std::integer_sequence<int, Row...>) {
  constexpr OuterTile<T> of[] = {outer_tile<T, Row + 1, Vectors>...};
  return of[rows - 1];
}

template <class T>
OuterTile<T> outer_tile_of(int rows, int vectors) {
  switch (vectors) {
    case 1:
      return outer_tile_of<T, 1>(rows, std::make_integer_sequence<int, gradient_tile_rows(1)>());
    case 2:
      return outer_tile_of<T, 2>(rows, std::make_integer_sequence<int, gradient_tile_rows(2)>());
    case 3:
      return outer_tile_of<T, 3>(rows, std::make_integer_sequence<int, gradient_tile_rows(3)>());
    default:
      return outer_tile_of<T, 4>(rows, std::make_integer_sequence<int, gradient_tile_rows(4)>());
  }
}

template <class T>
int64_t padded_columns(int64_t hidden, int64_t heads) {
  const int64_t d = hidden / heads;
  return (d + Vec<T>::width - 1) / Vec<T>::width * Vec<T>::width;
}

// One member's sum: rows of dr (first to last unit of some gates) against rows of the operand of their product, stored
// as S.
template <class T, class S>
class WeightGradient {
 public:
  // `sums` is (K, G*D, padded D), zero at the start.
  WeightGradient(const Weights<T>& w, int all_gates, int first_gate, int gates, int64_t unit0, int64_t unit1, T* sums)
      : hidden_(w.hidden),
        heads_(w.heads),
        d_(w.hidden / w.heads),
        columns_(padded_columns<T>(w.hidden, w.heads)),
        all_gates_(all_gates),
        first_gate_(first_gate),
        gates_(gates),
        unit0_(unit0),
        unit1_(unit1),
        sums_(sums) {}

  void add(const T* dr, const S* operand) {
    dr_[count_] = dr;
    operand_[count_] = operand;
    if (++count_ == gradient_rows) flush();
  }

  void flush() {
    for (int64_t head = unit0_ / d_; head * d_ < unit1_; ++head) flush(head);
    count_ = 0;
  }

 private:
  static constexpr bool narrow_ = sizeof(S) < sizeof(T);

  void flush(int64_t head) {
    constexpr int width = Vec<T>::width;
    const int64_t all = (d_ + width - 1) / width;
    const int64_t direct = narrow_ ? 0 : d_ / width;
    if constexpr (!narrow_) {
      for (int64_t v = 0; v < direct; v += max_vectors)
        columns(head, operand_, head * d_ + v * width, v * width, int(smaller(max_vectors, direct - v)));
    }
    // The rest from a copy: to widen it, or since a full load of the last columns could leave the row and the tensor.
    constexpr int most = narrow_ ? max_vectors : 1;
    alignas(64) T copied[gradient_rows * most * width];
    const T* rows[gradient_rows];
    for (int64_t v = direct; v < all; v += most) {
      const int vectors = int(smaller(most, all - v));
      for (int k = 0; k < count_; ++k) {
        T* const row = copied + k * vectors * width;
        for (int j = 0; j < vectors; ++j)
          load(operand_[k] + head * d_ + (v + j) * width, d_ - (v + j) * width).store(row + j * width);
        rows[k] = row;
      }
      columns(head, rows, 0, v * width, vectors);
    }
  }

  // A panel of `vectors` vectors of columns, for all units of the head that are this member's.
  void columns(int64_t head, const T* const* operand, int64_t operand_column, int64_t column, int vectors) {
    const int64_t begin = larger(unit0_ - head * d_, 0), end = smaller(unit1_ - head * d_, d_);
    const int most = gradient_tile_rows(vectors);
    for (int g = first_gate_; g < first_gate_ + gates_; ++g) {
      T* out = sums_ + (head * all_gates_ + g) * d_ * columns_ + column;
      for (int64_t j = begin; j < end; j += most) {
        const int rows = int(smaller(most, end - j));
        outer_tile_of<T>(rows, vectors)(count_, dr_, g * hidden_ + head * d_ + j, operand, operand_column,
                                        out + j * columns_, columns_);
      }
    }
  }

  int64_t hidden_, heads_, d_, columns_;
  int all_gates_, first_gate_, gates_;
  int64_t unit0_, unit1_;
  T* sums_;
  int count_ = 0;
  const T* dr_[gradient_rows];
  const S* operand_[gradient_rows];
};

// dR (rows, d) = the sum of `parts` padded sums, for rows begin..end-1.
template <class T>
void add_up(const T* sums, int parts, int64_t rows, int64_t d, int64_t padded, int64_t begin, int64_t end, T* dR) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t j = 0; j < d; ++j) {
      T sum = sums[row * padded + j];
      for (int part = 1; part < parts; ++part) sum += sums[(part * rows + row) * padded + j];
      dR[row * d + j] = sum;
    }
  }
}

}  // namespace
}  // namespace rnnkern
