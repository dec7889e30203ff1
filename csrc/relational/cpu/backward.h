// The backward pass, a block of features at a time: means and variances need the objects of one feature only.
//
//   dS = R (dR - sum over j of R dR) + the gradient of the scores,  dR = grad_R + grad_product values^T
//   symmetric: dz = scale (dS + dS^T) z;  otherwise dz_x = scale dS z_y, dz_y = scale dS^T z_x
//   dx = weight / s (dz - mean(dz) - xh sum(dz xh) / (n - c)),  dweight = sum dz xh,  dbias = sum dz
//
// Included once per SIMD level.
#pragma once

#include "relational/cpu/objects.h"

namespace rnnkern {
namespace {

// A block of features of one branch.
template <class T>
struct Branch {
  T *normal, *z, *grad, *inverse;

  Branch(const SimilarityRule& rule, Workspace<T>& workspace) {
    const int64_t size = rule.objects * block_width<T>;
    z = workspace.alloc(size);
    normal = workspace.alloc(size);
    grad = workspace.alloc(size);
    inverse = workspace.alloc(rule.segment_count * block_width<T>);
  }
};

template <class T>
struct SimilarityBackwardWorkspace {
  T *R, *grad;  // over pairs
  Branch<T> x, y;

  SimilarityBackwardWorkspace(const SimilarityBackward<T>& p, Workspace<T>& workspace, ThreadContext)
      : R(workspace.alloc(p.rule.objects * padded<T>(p.rule.objects))),
        grad(workspace.alloc(p.rule.objects * padded<T>(p.rule.objects))),
        x(p.rule, workspace),
        y(p.y ? Branch<T>(p.rule, workspace) : x) {}
};

// M[j][i] = the members of the rows in memory, or 0.
template <class T>
void read_rows(const SimilarityRule& rule, int64_t n, const T* from, T* M, int64_t ld) {
  for (int64_t k = 0; k < n * ld; ++k) M[k] = 0;
  for (int64_t i = 0; from && i < n; ++i)
    for (int64_t j = 0, members = rule.members(i, n), at = rule.offset(i); j < members; ++j)
      M[j * ld + i] = from[at + j];
}

// The gradient of the scores from those of R, in place.
template <class T>
void through_softmax(const SimilarityRule& rule, int64_t n, const T* R, T* grad, int64_t ld) {
  using V = Vec<T>;
  for (int64_t i = 0; i < n; i += V::width) {
    V along(0);
    for (int64_t j = 0; j < n; ++j) {
      const V part = V::load(R + j * ld + i) * V::load(grad + j * ld + i);
      along = along + select(has_column<T>(rule, i, j), part, V(0));
    }
    for (int64_t j = 0; j < n; ++j) {
      const V found = V::load(R + j * ld + i) * (V::load(grad + j * ld + i) - along);
      select(has_column<T>(rule, i, j), normal_or_zero(found), V(0)).store(grad + j * ld + i);
    }
  }
}

// The gradient of the block of a branch, and of weight and bias.
template <int count, class T, class Lanes>
RNNKERN_INLINE void through_norm(const SimilarityRule& rule, int64_t n, const Branch<T>& w, const T* weight,
                                 T* grad_weight, T* grad_bias, T* to, Lanes lanes) {
  using V = Vec<T>;
  constexpr int64_t stride = block_width<T>;
  const auto at = [](int64_t i, int v) { return i * stride + v * V::width; };
  for (int64_t i = rule.normalizes ? n : 0; i < rule.objects; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v)
      (i < n ? V::load(w.grad + at(i, v)) : V(0)).store(to + i * rule.features + v * V::width, lanes);
  if (!rule.normalizes) return;
  for_segments(rule, n, [&](int64_t k, int64_t begin, int64_t end) RNNKERN_INLINE_LAMBDA {
    V sum[count], along[count];
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) sum[v] = along[v] = V(0);
    for (int64_t i = begin; i < end; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < count; ++v) {
        const V grad = V::load(w.grad + at(i, v));
        sum[v] = sum[v] + grad;
        along[v] = fused(grad, V::load(w.normal + at(i, v)), along[v]);
      }
    const V share(T(1) / T(end - begin)), rest(T(1) / T(larger(end - begin - rule.correction, 1)));
    V factor[count];
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) {
      if (weight) {
        (V::load(grad_weight + v * V::width, lanes) + along[v]).store(grad_weight + v * V::width, lanes);
        (V::load(grad_bias + v * V::width, lanes) + sum[v]).store(grad_bias + v * V::width, lanes);
      }
      factor[v] = V::load(w.inverse + at(k, v)) * (weight ? V::load(weight + v * V::width, lanes) : V(1));
      sum[v] = share * sum[v];
      along[v] = rest * along[v];
    }
    for (int64_t i = begin; i < end; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < count; ++v) {
        const V centred = V::load(w.grad + at(i, v)) - sum[v];
        (factor[v] * (centred - V::load(w.normal + at(i, v)) * along[v]))
            .store(to + i * rule.features + v * V::width, lanes);
      }
  });
}

template <class T>
void similarity_backward_of(const SimilarityBackward<T>& p, const SimilarityBackwardWorkspace<T>& w, int64_t b,
                            int64_t piece) {
  const SimilarityRule& rule = p.rule;
  const int64_t n = rule.there(b), ld = padded<T>(rule.objects), d = rule.features, e = rule.values;
  const int64_t of_pairs = b * rule.size(), of_values = b * rule.objects * e, of_x = b * rule.objects * d;
  read_rows(rule, n, p.R + of_pairs, w.R, ld);
  read_rows(rule, n, p.grad_R ? p.grad_R + of_pairs : nullptr, w.grad, ld);
  if (p.grad_product)
    products<true>(p.grad_product + of_values, p.values + of_values, e, e, n, rule.mask != Mask::full, T(1), w.grad,
                   ld);
  if (p.grad_values && p.grad_product)
    mix(w.R, ld, 1, n, rule.objects, p.grad_product + of_values, p.grad_values + of_values, e);
  else if (p.grad_values)
    for (int64_t k = 0; k < rule.objects * e; ++k) p.grad_values[of_values + k] = 0;
  through_softmax(rule, n, w.R, w.grad, ld);
  const T scale = T(rule.scale);
  for (int64_t i = 0; p.grad_scores && i < n; ++i)
    for (int64_t j = 0, members = rule.members(i, n), at = of_pairs + rule.offset(i); j < members; ++j)
      w.grad[j * ld + i] += p.grad_scores[at + j];
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < n; ++i)
      w.R[j * ld + i] = scale * (p.y ? w.grad[j * ld + i] : w.grad[j * ld + i] + w.grad[i * ld + j]);

  const int64_t row = b / rule.share * d;
  for_features<T>(d, [&](int64_t first, auto vectors, auto lanes) RNNKERN_INLINE_LAMBDA {
    constexpr int count = vectors.value;
    const T *weight = p.weight ? p.weight + row + first : nullptr, *bias = p.weight ? p.bias + row + first : nullptr;
    const auto normalized = [&](const Branch<T>& branch, const T* x) RNNKERN_INLINE_LAMBDA {
      normalize<count>(rule, n, x + of_x + first, weight, bias, branch.normal, branch.z, block_width<T>, branch.inverse,
                       lanes);
    };
    const auto through = [&](const Branch<T>& branch, const T* z, int64_t by_row, int64_t by_column,
                             T* to) RNNKERN_INLINE_LAMBDA {
      mixtures<count>(w.R, by_row, by_column, n, z, block_width<T>, Vec<T>::all,
                      [&](int64_t i, int v, Vec<T> sum)
                          RNNKERN_INLINE_LAMBDA { sum.store(branch.grad + i * block_width<T> + v * Vec<T>::width); });
      const int64_t at = piece * d + first;
      through_norm<count>(rule, n, branch, weight, weight ? p.grad_weight + at : nullptr,
                          weight ? p.grad_bias + at : nullptr, to + of_x + first, lanes);
    };
    normalized(w.x, p.x);
    if (p.y) normalized(w.y, p.y);
    through(w.x, w.y.z, 1, ld, p.grad_x);
    if (p.y) through(w.y, w.x.z, ld, 1, p.grad_y);
  });
}

template <class T>
void similarity_backward(const SimilarityBackward<T>& p, Range pieces, ThreadContext me) {
  const SimilarityRule& rule = p.rule;
  const auto w = lay_out<SimilarityBackwardWorkspace<T>>(p, me);
  for (int64_t piece = pieces.begin; piece < pieces.end; ++piece) {
    const int64_t of_row = pieces_of(rule.share), begin = piece / of_row * rule.share;
    const int64_t first = piece % of_row * samples_of_piece, last = smaller(first + samples_of_piece, rule.share);
    for (int64_t k = 0; p.weight && k < rule.features; ++k)
      p.grad_weight[piece * rule.features + k] = p.grad_bias[piece * rule.features + k] = 0;
    for (int64_t b = begin + first; b < begin + last; ++b) similarity_backward_of(p, w, b, piece);
  }
}

}  // namespace
}  // namespace rnnkern
