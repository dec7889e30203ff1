// Products of a few rows with a matrix, and sums over vectors. A row has the same bits whatever rows stand beside it.
// Included by sab_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

constexpr int panel_vectors = 2;
template <class T>
constexpr int64_t panel_columns = panel_vectors * Vec<T>::width;

template <class T>
int64_t packed_size(int64_t depth, int64_t columns) {
  return (columns + panel_columns<T> - 1) / panel_columns<T> * panel_columns<T> * depth;
}

template <class T>
void pack(const T* matrix, int64_t depth, int64_t columns, T* panels) {
  for (int64_t j = 0; j < columns; j += panel_columns<T>) {
    const int64_t count = smaller(panel_columns<T>, columns - j);
    for (int64_t k = 0; k < depth; ++k, panels += panel_columns<T>) {
      std::memset(panels, 0, sizeof(T) * panel_columns<T>);
      std::memcpy(panels, matrix + k * columns + j, sizeof(T) * count);
    }
  }
}

template <int Rows, class T>
void multiply_rows(const T* x, int64_t stride, const SabPacked<T>& matrix, T* out, int64_t out_stride) {
  using V = Vec<T>;
  const T* panel = matrix.panels;
  for (int64_t j = 0; j < matrix.columns; j += panel_columns<T>) {
    V sum[Rows][panel_vectors];
    for (int r = 0; r < Rows; ++r)
      for (int p = 0; p < panel_vectors; ++p) sum[r][p] = V(0);
    for (int64_t k = 0; k < matrix.depth; ++k, panel += panel_columns<T>) {
      V y[panel_vectors];
#pragma GCC unroll 2
      for (int p = 0; p < panel_vectors; ++p) y[p] = V::load(panel + p * V::width);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const V a(x[r * stride + k]);
#pragma GCC unroll 2
        for (int p = 0; p < panel_vectors; ++p) sum[r][p] = sum[r][p] + a * y[p];
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int p = 0; p < panel_vectors; ++p) {
        const int64_t at = j + p * V::width;
        if (at < matrix.columns) sum[r][p].store(out + r * out_stride + at, matrix.columns - at);
      }
    }
  }
}

// out = x matrix, of at most sab_tile rows.
template <class T>
void multiply(int rows, const T* x, int64_t stride, const SabPacked<T>& matrix, T* out, int64_t out_stride) {
  static_assert(sab_tile == 4);
  if (rows == 4) multiply_rows<4>(x, stride, matrix, out, out_stride);
  if (rows == 3) multiply_rows<3>(x, stride, matrix, out, out_stride);
  if (rows == 2) multiply_rows<2>(x, stride, matrix, out, out_stride);
  if (rows == 1) multiply_rows<1>(x, stride, matrix, out, out_stride);
}

// f(j, lanes) for each vector of n values, `lanes` of which are there.
template <class T, class F>
RNNKERN_INLINE void each_vector(int64_t n, F f) {
  int64_t j = 0;
  for (; j + Vec<T>::width <= n; j += Vec<T>::width) f(j, Vec<T>::all);
  if (j < n) f(j, n - j);
}

template <class T>
RNNKERN_INLINE T total(Vec<T> x) {
  T sum = T(0);
  for (int lane = 0; lane < Vec<T>::width; ++lane) sum += x.v[lane];
  return sum;
}

template <class T>
RNNKERN_INLINE T dot(const T* a, const T* b, int64_t n) {
  using V = Vec<T>;
  V sum(0);
  each_vector<T>(n, [&](int64_t j, auto lanes)
                        RNNKERN_INLINE_LAMBDA { sum = sum + V::load(a + j, lanes) * V::load(b + j, lanes); });
  return total(sum);
}

// y += factor x
template <class T>
RNNKERN_INLINE void add(T* y, T factor, const T* x, int64_t n) {
  using V = Vec<T>;
  each_vector<T>(n, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
    (V::load(y + j, lanes) + V(factor) * V::load(x + j, lanes)).store(y + j, lanes);
  });
}

// w . tanh(x + y), or of x alone
template <class T>
RNNKERN_INLINE T weighted_tanh(const T* w, const T* x, const T* y, int64_t n) {
  using V = Vec<T>;
  V sum(0);
  each_vector<T>(n, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
    V z = V::load(x + j, lanes);
    if (y) z = z + V::load(y + j, lanes);
    sum = sum + V::load(w + j, lanes) * tanh(z);
  });
  return total(sum);
}

}  // namespace
}  // namespace rnnkern
