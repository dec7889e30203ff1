// What a sample does with its memory at one step. Members of the memory are given as rows, in the order of their slots,
// and sums run in that order. Included by cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

template <class T>
RNNKERN_INLINE T lanes_sum(Vec<T> x) {
  alignas(64) T lanes[Vec<T>::width];
  x.store(lanes);
#pragma GCC unroll 4
  for (int size = Vec<T>::width / 2; size > 0; size /= 2)
#pragma GCC unroll 8
    for (int k = 0; k < size; ++k) lanes[k] = lanes[k] + lanes[k + size];
  return lanes[0];
}

// exp(x) for x up to about 0; what would be no normal number is 0.
template <class T>
RNNKERN_INLINE Vec<T> decay(Vec<T> x) {
  const Vec<T> least(-ExpFacts<T>::limit);
  const Exp<T> e(select(x < least, least, x));
  return select(x < least, Vec<T>(0), e.scale + e.scale * e.fraction);
}

// e[j] = v . tanh(query + key(j)), or v . (query * key(j)), of which n values are read; v is padded with zeros.
template <class T, class Key>
RNNKERN_INLINE void align(const T* query, Key key, int64_t count, const T* v, int64_t n, bool dot, T* e) {
  using V = Vec<T>;
  for (int64_t j = 0; j < count; ++j) {
    const T* const one = key(j);
    V sum(T(0));
    for (int64_t k = 0; k < n; k += V::width) {
      const V q = V::load(query + k, n - k), u = V::load(one + k, n - k);
      sum = sum + V::load(v + k) * (dot ? q * u : tanh(q + u));
    }
    e[j] = lanes_sum(sum);
  }
}

// exp(e - shift) in place, of as many vectors as hold them.
template <class T>
void decay_all(T* e, int64_t count, T shift) {
  using V = Vec<T>;
  for (int64_t j = 0; j < count; j += V::width) decay(V::load(e + j) - V(shift)).store(e + j);
}

// In place; returns the log of the sum of exp(e).
template <class T>
T softmax(T* e, int64_t count) {
  T most = -std::numeric_limits<T>::infinity();
  for (int64_t j = 0; j < count; ++j) most = e[j] > most ? e[j] : most;
  decay_all(e, count, most);
  T sum = 0;
  for (int64_t j = 0; j < count; ++j) sum += e[j];
  for (int64_t j = 0; j < count; ++j) e[j] /= sum;
  return most + std::log(sum);
}

// s = mix (h + sum over j of alpha[j] events[j]).
template <class T>
void mixed(const T* h, const T* const* events, const T* alpha, int64_t count, T mix, int64_t width, T* s) {
  using V = Vec<T>;
  constexpr int together = 4;
  int64_t k = 0;
  for (; k + together * V::width <= width; k += together * V::width) {
    V sum[together] = {V(T(0)), V(T(0)), V(T(0)), V(T(0))};
    for (int64_t j = 0; j < count; ++j)
#pragma GCC unroll 4
      for (int r = 0; r < together; ++r) sum[r] = sum[r] + V(alpha[j]) * V::load(events[j] + k + r * V::width);
#pragma GCC unroll 4
    for (int r = 0; r < together; ++r) (V(mix) * (V::load(h + k + r * V::width) + sum[r])).store(s + k + r * V::width);
  }
  for (; k < width; k += V::width) {
    V sum(T(0));
    for (int64_t j = 0; j < count; ++j) sum = sum + V(alpha[j]) * V::load(events[j] + k);
    (V(mix) * (V::load(h + k) + sum)).store(s + k);
  }
}

// A member of the memory in the backward: its state and key as they lie, and what has come to their gradients.
template <class T>
struct Attended {
  const T *event, *key;
  T *grad_event, *grad_key;
};

// Adds to the gradients of events and keys what comes from the gradient of the sum alpha . events, and to dv; writes
// dquery. Rows of events, keys and the query are n long, all others padded to whole vectors. `de` is (count,) of room.
template <class T>
void attend_backward(const Attended<T>* members, const T* alpha, int64_t count, const T* dcontext, const T* query,
                     const T* v, int64_t n, bool dot, T* de, T* dquery, T* dv) {
  using V = Vec<T>;
  T weighted = 0;
  for (int64_t j = 0; j < count; ++j) {
    V sum(T(0));
    for (int64_t k = 0; k < n; k += V::width) sum = sum + V::load(dcontext + k) * V::load(members[j].event + k, n - k);
    de[j] = lanes_sum(sum);
    weighted += alpha[j] * de[j];
  }
  for (int64_t j = 0; j < count; ++j) de[j] = alpha[j] * (de[j] - weighted);
  for (int64_t k = 0; k < n; k += V::width) {
    const V q = V::load(query + k, n - k), factor = V::load(v + k), dc = V::load(dcontext + k);
    V dq(T(0)), dfactor = V::load(dv + k);
    for (int64_t j = 0; j < count; ++j) {
      const Attended<T>& one = members[j];
      const V u = V::load(one.key + k, n - k), a(alpha[j]), d(de[j]);
      V du;
      if (dot) {
        dfactor = dfactor + d * (q * u);
        du = d * factor * q;
        dq = dq + d * factor * u;
      } else {
        const V th = tanh(q + u);
        dfactor = dfactor + d * th;
        du = d * factor * (V(T(1)) - th * th);
        dq = dq + du;
      }
      (V::load(one.grad_event + k) + a * dc).store(one.grad_event + k);
      (V::load(one.grad_key + k) + du).store(one.grad_key + k);
    }
    dq.store(dquery + k);
    dfactor.store(dv + k);
  }
}

}  // namespace
}  // namespace rnnkern
