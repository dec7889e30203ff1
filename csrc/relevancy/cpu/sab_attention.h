// Shared by both directions: products of a few rows with a matrix, the LSTM, keys, scores, the selection of the k
// largest, and their weights. Included once per SIMD level.
#pragma once

#include "cells/lstm.h"
#include "relevancy/cpu/attention.h"
#include "relevancy/cpu/product.h"
#include "relevancy/cpu/sab_problem.h"

namespace rnnkern {
namespace {

template <class T>
void pack(const T* matrix, int64_t depth, int64_t columns, T* panels) {
  Packed<T>(depth, columns, panels).pack(matrix, ThreadContext{0, 1, nullptr});
}

// The workspace of a thread: that of each sample of its tile.
template <class Sample>
struct SabTile {
  Sample samples[sab_tile];

  template <class Call, class T>
  SabTile(const Call& call, Workspace<T>& workspace, ThreadContext)
      : samples{{call, workspace}, {call, workspace}, {call, workspace}, {call, workspace}} {}
};
static_assert(sab_tile == 4);

// Either direction.
template <class Sample, class Call>
void process(const Call& call, Range samples, ThreadContext me) {
  auto tile = lay_out<SabTile<Sample>>(call, me);
  for (int64_t b = samples.begin; b < samples.end; b += sab_tile)
    process_tile(call, tile.samples, b, int(smaller(sab_tile, samples.end - b)));
}

// to = from * matrix, for the first samples of a tile.
template <class T, class Sample>
void multiply(int samples, const Sample* of, T* Sample::* from, const SabPacked<T>& matrix, T* Sample::* to) {
  Packed<T>(matrix.depth, matrix.columns, matrix.panels)
      .multiply(0, samples, [&](int64_t s) { return of[s].*from; }, [&](int64_t s) { return of[s].*to; });
}

// to = x matrix.
template <class T>
void multiply(const T* x, const SabPacked<T>& matrix, T* to) {
  Packed<T>(matrix.depth, matrix.columns, matrix.panels).multiply(0, 1, Dense<const T>{x, 0}, Dense<T>{to, 0});
}

// y += factor x.
template <class T>
RNNKERN_INLINE void add(T* y, T factor, const T* x, int64_t n) {
  using V = Vec<T>;
  for_vectors<V>(0, n, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
    (V::load(y + j, lanes) + V(factor) * V::load(x + j, lanes)).store(y + j, lanes);
  });
}

// w . tanh(x + y), or w . tanh(x) if y is null.
template <class T>
RNNKERN_INLINE T weighted_tanh(const T* w, const T* x, const T* y, int64_t n) {
  using V = Vec<T>;
  V sum(0);
  for_vectors<V>(0, n, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
    V z = V::load(x + j, lanes);
    if (y) z = z + V::load(y + j, lanes);
    sum = sum + V::load(w + j, lanes) * tanh(z);
  });
  return horizontal_sum(sum);
}

// The LSTM step of one row: computes h~ from u, R h (4n) and c, and if wanted the new c and the gates.
template <class T>
RNNKERN_INLINE void lstm_row(const SabCall<T>& call, const T* u, const T* r, const T* c, T* h, T* next_c, T* gates) {
  using V = Vec<T>;
  const int64_t n = call.size;
  for_vectors<V>(0, n, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
    V x[4], y[4], old[2], next[2], save[4];
    for (int g = 0; g < 4; ++g) {
      x[g] = V::load(u + g * n + j, lanes);
      y[g] = V::load(r + g * n + j, lanes);
      if (call.bias) y[g] = y[g] + V::load(call.bias + g * n + j, lanes);
    }
    old[1] = V::load(c + j, lanes);
    Lstm::forward<V>(x, y, old, nullptr, next, save);
    next[0].store(h + j, lanes);
    if (next_c) next[1].store(next_c + j, lanes);
    for (int g = 0; gates && g < 4; ++g) save[g].store(gates + g * n + j, lanes);
  });
}

constexpr double above_threshold = 1e-7;

// The key of a memory, its contribution to scores: w2 . tanh(m), or Wm m.
template <class T>
RNNKERN_INLINE void make_key(const SabCall<T>& call, const T* memory, T* key) {
  if (call.width)
    multiply(memory, call.key, key);
  else
    *key = weighted_tanh(call.w + call.size, memory, static_cast<const T*>(nullptr), call.size);
}

// a > b, where NaN is the largest value, as in torch.sort.
template <class T>
RNNKERN_INLINE bool more(T a, T b) {
  return a > b || (a != a && b == b);
}

// The slots of the k largest scores, in descending order; of equal scores the older comes first.
template <class T>
void select_largest(const T* scores, int64_t count, int64_t k, int32_t* slots) {
  int64_t found = 0;
  for (int64_t j = 0; j < count; ++j) {
    if (found == k && !more(scores[j], scores[slots[k - 1]])) continue;
    int64_t at = found < k ? found++ : k - 1;
    for (; at > 0 && more(scores[j], scores[slots[at - 1]]); --at) slots[at] = slots[at - 1];
    slots[at] = int32_t(j);
  }
}

// Sets the weights and slots (k) of the attended memories, empty ones last. Returns the divisor of the weights.
template <class T>
T attend(const T* scores, int64_t count, int64_t k, T* weights, int32_t* slots) {
  if (count <= k) {
    for (int64_t i = 0; i < k; ++i) {
      weights[i] = i < count ? scores[i] : T(0);
      slots[i] = i < count ? int32_t(i) : -1;
    }
    return T(1);
  }
  select_largest(scores, count, k, slots);
  const T threshold = scores[slots[k - 1]] + T(above_threshold);
  T sum = T(0);
  for (int64_t i = 0; i < k; ++i) {
    const T over = scores[slots[i]] - threshold;
    weights[i] = over < T(0) ? T(0) : over;
    sum += weights[i];
  }
  sum += T(above_threshold);
  for (int64_t i = 0; i < k; ++i) weights[i] /= sum;
  return sum;
}

}  // namespace
}  // namespace rnnkern
