// Shared by forward.h and backward.h: normalization over objects, products of all pairs of rows, and mixtures of rows.
// Matrices over pairs are stored by columns, M[j * stride + i], so that a vector holds several rows i. Included once
// per SIMD level.
#pragma once

#include "cpu/fused.h"
#include "cpu/kernel.h"
#include "cpu/sums.h"
#include "relational/cpu/problem.h"

namespace rnnkern {
namespace {

constexpr int tile_rows = RNNKERN_VECTOR_REGISTERS == 32 ? 4 : 2, tile_columns = 4;
constexpr int block_vectors = 4;

template <class T>
constexpr int64_t block_width = block_vectors * Vec<T>::width;

// Calls f(first, vectors, lanes) for blocks of features; `vectors` is a constant, and the last vector has `lanes`
// lanes.
template <class T, class F>
RNNKERN_INLINE void for_features(int64_t features, F f) {
  using V = Vec<T>;
  int64_t at = 0;
  for (; at + block_width<T> <= features; at += block_width<T>)
    f(at, std::integral_constant<int, block_vectors>{}, V::all);
  for (; at < features; at += V::width) f(at, std::integral_constant<int, 1>{}, features - at);
}

// Calls f(begin, end) for each segment that has objects among the first `there`.
template <class F>
RNNKERN_INLINE void for_segments(const SimilarityRule& rule, int64_t there, F f) {
  for (int64_t k = 0, begin = 0; k < rule.segment_count && begin < there; begin += rule.segments[k++])
    f(k, begin, smaller(begin + rule.segments[k], there));
}

// Writes normalized features, those multiplied by `weight` plus `bias`, and 1 / s of each segment. Values are taken
// relative to the first object, so that constant features become exactly 0. `normal` and `inverse` may be null.
template <int count, class T, class Lanes>
RNNKERN_INLINE void normalize(const SimilarityRule& rule, int64_t there, const T* x, const T* weight, const T* bias,
                              T* normal, T* z, int64_t stride, T* inverse, Lanes lanes) {
  using V = Vec<T>;
  const int64_t d = rule.features;
  if (!rule.normalizes) {
    for (int64_t i = 0; i < there; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < count; ++v) V::load(x + i * d + v * V::width, lanes).store(z + i * stride + v * V::width);
    return;
  }
  V gamma[count], beta[count];
#pragma GCC unroll 4
  for (int v = 0; v < count; ++v) {
    gamma[v] = weight ? V::load(weight + v * V::width, lanes) : V(1);
    beta[v] = bias ? V::load(bias + v * V::width, lanes) : V(0);
  }
  for_segments(rule, there, [&](int64_t k, int64_t begin, int64_t end) RNNKERN_INLINE_LAMBDA {
    V first[count], mean[count], factor[count];
    const T share = T(1) / T(end - begin), rest = T(1) / T(larger(end - begin - rule.correction, 1));
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) {
      first[v] = V::load(x + begin * d + v * V::width, lanes);
      mean[v] = factor[v] = V(0);
    }
    for (int64_t i = begin + 1; i < end; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < count; ++v) mean[v] = mean[v] + (V::load(x + i * d + v * V::width, lanes) - first[v]);
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) mean[v] = V(share) * mean[v];
    for (int64_t i = begin; i < end; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < count; ++v) {
        const V centred = (V::load(x + i * d + v * V::width, lanes) - first[v]) - mean[v];
        factor[v] = fused(centred, centred, factor[v]);
      }
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) {
      // A single object becomes the bias, even if eps is 0; and lanes beyond the features stay 0.
      const V eps = count > 1 ? V(T(rule.eps)) : select(among_first<T>(lanes), V(T(rule.eps)), V(1));
      factor[v] = end - begin > 1 ? V(1) / root(fused(V(rest), factor[v], eps)) : V(0);
      if (inverse) factor[v].store(inverse + k * block_width<T> + v * V::width);
    }
    for (int64_t i = begin; i < end; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < count; ++v) {
        const V one = ((V::load(x + i * d + v * V::width, lanes) - first[v]) - mean[v]) * factor[v];
        if (normal) one.store(normal + i * stride + v * V::width);
        fused(one, gamma[v], beta[v]).store(z + i * stride + v * V::width);
      }
  });
}

// All features of a sample, padded with zeros to whole vectors.
template <class T>
void normalize_all(const SimilarityRule& rule, int64_t sample, const T* x, const T* weight, const T* bias, T* z) {
  const int64_t d = rule.features, row = sample / rule.share * d;
  for_features<T>(d, [&](int64_t at, auto vectors, auto lanes) RNNKERN_INLINE_LAMBDA {
    normalize<vectors.value, T>(rule, rule.there(sample), x + sample * rule.objects * d + at,
                                weight ? weight + row + at : nullptr, bias ? bias + row + at : nullptr, nullptr, z + at,
                                padded<T>(d), nullptr, lanes);
  });
}

// M[j][i] = (add ? M[j][i] : 0) + scale a_i . b_j for `rows` rows from i on, and for columns j < n.
template <int rows, bool add, class T>
RNNKERN_INLINE void products_of_rows(const T* a, const T* b, int64_t stride, int64_t width, int64_t i, int64_t n,
                                     T scale, T* M, int64_t ld) {
  using V = Vec<T>;
  for (int64_t j = 0; j < n; j += tile_columns) {
    V sum[rows * tile_columns];
    const T* of_b[tile_columns];
#pragma GCC unroll 4
    for (int c = 0; c < tile_columns; ++c) of_b[c] = b + smaller(j + c, n - 1) * stride;
#pragma GCC unroll 16
    for (int k = 0; k < rows * tile_columns; ++k) sum[k] = V(0);
    const auto add_products = [&](int64_t at, auto lanes) RNNKERN_INLINE_LAMBDA {
      V left[rows];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) left[r] = V::load(a + (i + r) * stride + at, lanes);
#pragma GCC unroll 4
      for (int c = 0; c < tile_columns; ++c) {
        const V right = V::load(of_b[c] + at, lanes);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) sum[c * rows + r] = fused(left[r], right, sum[c * rows + r]);
      }
    };
    for_vectors<V>(0, width, add_products);
    alignas(64) T found[rows * tile_columns];
    sums_of_lanes<T, rows * tile_columns>(sum, found);
    for (int64_t c = 0; c < smaller(tile_columns, n - j); ++c)
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        T& to = M[(j + c) * ld + i + r];
        to = add ? to + scale * found[c * rows + r] : scale * found[c * rows + r];
      }
  }
}

// Products of all pairs of the first n rows; without those of j > i, except for some near the diagonal, if `lower`.
template <bool add, class T>
void products(const T* a, const T* b, int64_t stride, int64_t width, int64_t n, bool lower, T scale, T* M, int64_t ld) {
  int64_t i = 0;
  for (; i + tile_rows <= n; i += tile_rows)
    products_of_rows<tile_rows, add>(a, b, stride, width, i, lower ? i + tile_rows : n, scale, M, ld);
  for (; i < n; ++i) products_of_rows<1, add>(a, b, stride, width, i, lower ? i + 1 : n, scale, M, ld);
}

// Calls store(row, v, vector) with sum over j < n of weights[row * by_row + j * by_column] source[j], for `rows` rows
// from `row` on and the vectors v of a block.
template <int rows, int count, class T, class Lanes, class Store>
RNNKERN_INLINE void mixtures_of_rows(const T* weights, int64_t by_row, int64_t by_column, int64_t row, int64_t n,
                                     const T* source, int64_t stride, Lanes lanes, Store store) {
  using V = Vec<T>;
  V sum[rows][count];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) sum[r][v] = V(0);
  for (int64_t j = 0; j < n; ++j) {
    V of_j[count];
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) of_j[v] = V::load(source + j * stride + v * V::width, lanes);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const V factor(weights[(row + r) * by_row + j * by_column]);
#pragma GCC unroll 4
      for (int v = 0; v < count; ++v) sum[r][v] = fused(factor, of_j[v], sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) store(row + r, v, sum[r][v]);
}

template <int count, class T, class Lanes, class Store>
RNNKERN_INLINE void mixtures(const T* weights, int64_t by_row, int64_t by_column, int64_t n, const T* source,
                             int64_t stride, Lanes lanes, Store store) {
  int64_t row = 0;
  for (; row + tile_rows <= n; row += tile_rows)
    mixtures_of_rows<tile_rows, count>(weights, by_row, by_column, row, n, source, stride, lanes, store);
  for (; row < n; ++row) mixtures_of_rows<1, count>(weights, by_row, by_column, row, n, source, stride, lanes, store);
}

// out[i] = sum over j < n of weights[i * by_row + j * by_column] source[j] for i < n, and 0 for the other rows.
template <class T>
void mix(const T* weights, int64_t by_row, int64_t by_column, int64_t n, int64_t rows, const T* source, T* out,
         int64_t width) {
  for_features<T>(width, [&](int64_t at, auto vectors, auto lanes) RNNKERN_INLINE_LAMBDA {
    mixtures<vectors.value>(weights, by_row, by_column, n, source + at, width, lanes,
                            [&](int64_t row, int v, Vec<T> sum) RNNKERN_INLINE_LAMBDA {
                              sum.store(out + row * width + at + v * Vec<T>::width, lanes);
                            });
  });
  for (int64_t k = n * width; k < rows * width; ++k) out[k] = 0;
}

// Which rows of a vector have column j.
template <class T>
RNNKERN_INLINE typename Vec<T>::RawBits has_column(const SimilarityRule& rule, int64_t first_row, int64_t j) {
  using Bits = typename Vec<T>::RawBits;
  using Lane = typename Numbers<T>::Lane;
  const Bits row = numbered<T>(), column = Bits{} + Lane(smaller(j - first_row, 1 << 20));
  return rule.mask == Mask::causal ? row >= column : rule.mask == Mask::strict ? row > column : row == row;
}

// Replaces numbers too small to be normal by 0: they slow down whatever reads them, tenfold and more.
template <class T>
RNNKERN_INLINE Vec<T> normal_or_zero(Vec<T> x) {
  return select(abs(x) < Vec<T>(std::numeric_limits<T>::min()), Vec<T>(0), x);
}

}  // namespace
}  // namespace rnnkern
