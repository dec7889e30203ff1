// Keys, scores, the k largest and their weights. Once per SIMD level.
#pragma once

#include <cstdint>

#include "common/simd.h"
#include "relevancy/sab_problem.h"
#include "relevancy/sab_product.h"

namespace rnnkern {
namespace {

constexpr double above_threshold = 1e-7;

// What a memory gives to its scores: w2 . tanh(m), or Wm m.
template <class T>
RNNKERN_INLINE void make_key(const SabCall<T>& call, const T* memory, T* key) {
  if (call.width)
    multiply(1, memory, call.size, call.key, key, call.width);
  else
    *key = weighted_tanh(call.w + call.size, memory, static_cast<const T*>(nullptr), call.size);
}

// NaN counts as the largest, as it does for torch.sort.
template <class T>
RNNKERN_INLINE bool more(T a, T b) {
  return a > b || (a != a && b == b);
}

// The k largest of the scores, in order; of equal ones the older first.
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

// weights and slots (k) of the memories attended to, empty places last; returns what the weights were divided by.
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
