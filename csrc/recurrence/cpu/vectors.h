// Loads and stores rows of one or several values per unit as vectors of units. Included once per SIMD level.
#pragma once

#include "cpu/storage.h"
#include "cpu/vectors.h"

namespace rnnkern {
namespace {

template <class V, class S>
RNNKERN_INLINE void load_gates(V* v, int count, const S* row, int64_t hidden, int64_t unit, int64_t lanes) {
  for (int g = 0; g < count; ++g) v[g] = load(row + g * hidden + unit, lanes);
}

template <class V, class S>
RNNKERN_INLINE void store_gates(const V* v, int count, S* row, int64_t hidden, int64_t unit, int64_t lanes) {
  for (int g = 0; g < count; ++g) store(v[g], row + g * hidden + unit, lanes);
}

// Adds to the gradient of the bias. The rows of each step are summed before they are added, so rounding errors grow
// with B + T, not with B T.
template <class V, class T>
RNNKERN_INLINE void add_gates(const V* v, int first, int last, T* sums, int64_t hidden, int64_t unit, int64_t lanes) {
  for (int g = first; g < last; ++g) {
    T* sum = sums + g * hidden + unit;
    (V::load(sum, lanes) + v[g]).store(sum, lanes);
  }
}

// Units begin..end-1 of a row in T: the row itself, or a copy converted into `workspace`.
template <class S, class T, class Strip>
RNNKERN_INLINE const T* widened_gates(const S* row, int gates, int64_t hidden, const Strip& strip, T* workspace) {
  if constexpr (std::is_same_v<S, T>) {
    return row;
  } else {
    for (int g = 0; g < gates; ++g)
      for_vectors<Vec<T>>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        load(row + g * hidden + unit, lanes).store(workspace + g * hidden + unit, lanes);
      });
    return workspace;
  }
}

// Where equations write a row that is stored as F: the row itself, or `workspace`, from which copy_gates converts it.
template <class F, class T>
RNNKERN_INLINE T* in_arithmetic(F* row, T* workspace) {
  if constexpr (std::is_same_v<F, T>)
    return row;
  else
    return workspace;
}

template <class T, class S, class Strip>
RNNKERN_INLINE void copy_gates(const T* row, S* to, int gates, int64_t hidden, const Strip& strip) {
  for (int g = 0; g < gates; ++g)
    for_vectors<Vec<T>>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      store(Vec<T>::load(row + g * hidden + unit, lanes), to + g * hidden + unit, lanes);
    });
}

}  // namespace
}  // namespace rnnkern
