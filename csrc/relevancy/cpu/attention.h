// The attention of one sample to its memory in one step. The memory is given as pointers to rows, in the order of their
// slots, and sums run in that order. Shared by the operators of this family. Included once per SIMD level.
#pragma once

#include "cpu/kernel.h"

namespace rnnkern {
namespace {

// exp(x) for x up to about 0; subnormal results are flushed to 0.
template <class T>
RNNKERN_INLINE Vec<T> decay(Vec<T> x) {
  const Vec<T> least(-ExpFacts<T>::limit);
  const Exp<T> e(select(x < least, least, x));
  return select(x < least, Vec<T>(0), e.scale + e.scale * e.fraction);
}

// The vector that v multiplies in e = v . tanh(query + key), or in e = v . (query * key).
template <bool dot, class T>
RNNKERN_INLINE Vec<T> aligned(Vec<T> query, Vec<T> key) {
  return dot ? query * key : tanh(query + key);
}

// e[j] of `count` keys, from the units first..end-1; reads the query and v only once.
template <int count, bool dot, class T>
RNNKERN_INLINE void align_some(const T* query, const T* const* keys, const T* v, int64_t first, int64_t end, T* e) {
  using V = Vec<T>;
  V sums[count];
  for (V& sum : sums) sum = V(0);
  for_vectors<V>(first, end, [&](int64_t k, auto lanes) RNNKERN_INLINE_LAMBDA {
    const V q = V::load(query + k, lanes), factor = V::load(v + k, lanes);
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) sums[c] = sums[c] + factor * aligned<dot>(q, V::load(keys[c] + k, lanes));
  });
  for (int c = 0; c < count; ++c) e[c] = horizontal_sum(sums[c]);
}

// e[j] of each key, from the units of one head: first..end-1.
template <bool dot, class T>
void align(const T* query, const T* const* keys, int64_t count, const T* v, int64_t first, int64_t end, T* e) {
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) align_some<4, dot>(query, keys + j, v, first, end, e + j);
  for (; j < count; ++j) align_some<1, dot>(query, keys + j, v, first, end, e + j);
}

template <class T>
RNNKERN_INLINE T inner_product(const T* a, const T* b, int64_t first, int64_t end) {
  using V = Vec<T>;
  V sum(0);
  for_vectors<V>(first, end, [&](int64_t k, auto lanes) RNNKERN_INLINE_LAMBDA {
    sum = sum + V::load(a + k, lanes) * V::load(b + k, lanes);
  });
  return horizontal_sum(sum);
}

// Replaces e by exp(e - shift), in whole vectors; elements from `count` on, which may hold anything, become 1.
template <class T>
void decay_all(T* e, int64_t count, T shift) {
  using V = Vec<T>;
  for (int64_t j = count; j % V::width; ++j) e[j] = shift;
  for (int64_t j = 0; j < count; j += V::width) decay(V::load(e + j) - V(shift)).store(e + j);
}

// Softmax in place.
template <class T>
void softmax(T* e, int64_t count) {
  T most = -std::numeric_limits<T>::infinity();
  for (int64_t j = 0; j < count; ++j) most = e[j] > most ? e[j] : most;
  decay_all(e, count, most);
  T sum = 0;
  for (int64_t j = 0; j < count; ++j) sum += e[j];
  for (int64_t j = 0; j < count; ++j) e[j] /= sum;
}

// s = mix (h + sum over j of alpha[j] events[j]) for the units first..end-1; without h if it is null.
template <class T>
void mixed(const T* h, const T* const* events, const T* alpha, int64_t count, T mix, int64_t first, int64_t end, T* s) {
  using V = Vec<T>;
  constexpr int together = 4;
  int64_t k = first;
  for (; h && k + together * V::width <= end; k += together * V::width) {
    V sum[together] = {V(T(0)), V(T(0)), V(T(0)), V(T(0))};
    for (int64_t j = 0; j < count; ++j)
#pragma GCC unroll 4
      for (int r = 0; r < together; ++r) sum[r] = sum[r] + V(alpha[j]) * V::load(events[j] + k + r * V::width);
#pragma GCC unroll 4
    for (int r = 0; r < together; ++r) (V(mix) * (V::load(h + k + r * V::width) + sum[r])).store(s + k + r * V::width);
  }
  for_vectors<V>(k, end, [&](int64_t k, auto lanes) RNNKERN_INLINE_LAMBDA {
    V sum(T(0));
    for (int64_t j = 0; j < count; ++j) sum = sum + V(alpha[j]) * V::load(events[j] + k, lanes);
    (V(mix) * (h ? V::load(h + k, lanes) + sum : sum)).store(s + k, lanes);
  });
}

// Pointers to the events and keys that a sample attends to, and to their gradients.
template <class T>
struct Attended {
  const T **events, **keys;
  T **grad_events, **grad_keys;
};

// Given the gradient of the sum over alpha . events, for the units of one head, first..end-1: adds to the gradients of
// events and keys, and to dv; writes de, the gradient of each e, and dquery.
template <bool dot, class T>
void attend_backward(const Attended<T>& members, const T* alpha, int64_t count, const T* dcontext, const T* query,
                     const T* v, int64_t first, int64_t end, T* de, T* dquery, T* dv) {
  using V = Vec<T>;
  T weighted = 0;
  for (int64_t j = 0; j < count; ++j) {
    de[j] = inner_product(dcontext, members.events[j], first, end);
    weighted += alpha[j] * de[j];
  }
  for (int64_t j = 0; j < count; ++j) de[j] = alpha[j] * (de[j] - weighted);
  for_vectors<V>(first, end, [&](int64_t k, auto lanes) RNNKERN_INLINE_LAMBDA {
    const V q = V::load(query + k, lanes), factor = V::load(v + k, lanes), dc = V::load(dcontext + k, lanes);
    V dq(T(0)), dfactor = V::load(dv + k, lanes);
    for (int64_t j = 0; j < count; ++j) {
      const V u = V::load(members.keys[j] + k, lanes), d(de[j]), x = aligned<dot>(q, u);
      T *const of_event = members.grad_events[j] + k, *const of_key = members.grad_keys[j] + k;
      const V dx = d * factor, du = dot ? dx * q : dx * (V(T(1)) - x * x);
      dfactor = dfactor + d * x;
      dq = dq + (dot ? dx * u : du);
      (V::load(of_event, lanes) + V(alpha[j]) * dc).store(of_event, lanes);
      (V::load(of_key, lanes) + du).store(of_key, lanes);
    }
    dq.store(dquery + k, lanes);
    dfactor.store(dv + k, lanes);
  });
}

}  // namespace
}  // namespace rnnkern
