// The forward pass: normalized objects, products of pairs, softmax of each row. Included once per SIMD level.
#pragma once

#include "relational/cpu/objects.h"

namespace rnnkern {
namespace {

template <class T>
struct SimilarityForwardWorkspace {
  T *z_x, *z_y, *pairs;

  SimilarityForwardWorkspace(const SimilarityForward<T>& p, Workspace<T>& workspace, ThreadContext) {
    const int64_t objects = p.rule.objects;
    z_x = workspace.alloc(objects * padded<T>(p.rule.features));
    z_y = p.y ? workspace.alloc(objects * padded<T>(p.rule.features)) : z_x;
    pairs = workspace.alloc(objects * padded<T>(objects));
  }
};

// The softmax of all rows, in place: 0 where a row has no member.
template <class T>
void softmax_of_rows(const SimilarityRule& rule, int64_t n, T* M, int64_t ld) {
  using V = Vec<T>;
  constexpr T limit = ExpFacts<T>::limit;
  for (int64_t i = 0; i < n; i += V::width) {
    const int64_t last = rule.mask == Mask::full ? n : smaller(n, i + V::width);
    V most(-std::numeric_limits<T>::infinity()), sum(0);
    for (int64_t j = 0; j < last; ++j) {
      const V score = V::load(M + j * ld + i);
      most = select(has_column<T>(rule, i, j) & (score > most), score, most);
    }
    for (int64_t j = 0; j < last; ++j) {
      const V below = V::load(M + j * ld + i) - most;
      const Exp<T> e(select(below < V(-limit), V(-limit), below));
      const V power = select(below < V(-limit), V(0), fused(e.scale, e.fraction, e.scale));
      const V mine = select(has_column<T>(rule, i, j), power, V(0));
      sum = sum + mine;
      mine.store(M + j * ld + i);
    }
    const auto nobody = sum == V(0);
    for (int64_t j = 0; j < last; ++j) {
      const V share = V::load(M + j * ld + i) / sum;
      select(nobody, V(0), normal_or_zero(share)).store(M + j * ld + i);
    }
    for (int64_t j = last; j < n; ++j) V(0).store(M + j * ld + i);
  }
}

// Writes the members of each row, and 0 elsewhere.
template <class T>
void write_rows(const SimilarityRule& rule, int64_t n, const T* M, int64_t ld, T* to) {
  for (int64_t i = 0; i < rule.objects; ++i) {
    const int64_t members = rule.members(i, n), width = rule.width(i);
    for (int64_t j = 0; j < members; ++j) to[j] = M[j * ld + i];
    for (int64_t j = members; j < width; ++j) to[j] = 0;
    to += width;
  }
}

template <class T>
void similarity_forward(const SimilarityForward<T>& p, Range samples, ThreadContext me) {
  const SimilarityRule& rule = p.rule;
  const auto w = lay_out<SimilarityForwardWorkspace<T>>(p, me);
  const int64_t width = padded<T>(rule.features), ld = padded<T>(rule.objects), e = rule.values;
  for (int64_t b = samples.begin; b < samples.end; ++b) {
    const int64_t n = rule.there(b);
    normalize_all(rule, b, p.x, p.weight, p.bias, w.z_x);
    if (p.y) normalize_all(rule, b, p.y, p.weight, p.bias, w.z_y);
    products<false>(w.z_x, w.z_y, width, width, n, rule.mask != Mask::full, T(rule.scale), w.pairs, ld);
    if (p.scores) write_rows(rule, n, w.pairs, ld, p.scores + b * rule.size());
    softmax_of_rows(rule, n, w.pairs, ld);
    write_rows(rule, n, w.pairs, ld, p.R + b * rule.size());
    if (p.product)
      mix(w.pairs, 1, ld, n, rule.objects, p.values + b * rule.objects * e, p.product + b * rule.objects * e, e);
  }
}

}  // namespace
}  // namespace rnnkern
