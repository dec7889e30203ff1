// Loads and stores rows of one or several values per unit as vectors of units, and converts those that are stored in 16
// bits. Included once per SIMD level.
#pragma once

#include "cpu/storage.h"
#include "cpu/vectors.h"
#include "recurrence/problem.h"

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

// Adds to the gradient of the bias of a step (StepBias in gradients.h).
template <class V, class T>
RNNKERN_INLINE void add_gates(const V* v, int first, int last, T* sums, int64_t hidden, int64_t unit, int64_t lanes) {
  for (int g = first; g < last; ++g) {
    T* sum = sums + g * hidden + unit;
    (V::load(sum, lanes) + v[g]).store(sum, lanes);
  }
}

// Calls f with a pointer to the elements as they are stored.
template <class T, class Do>
RNNKERN_INLINE void as_stored(Rows<T> row, Do f) {
#define RNNKERN_STORED(type, name) \
  if (row.storage == Storage::type) return f(row.template as<device::type>());
  if constexpr (sizeof(T) == 4) {
    RNNKERN_NARROW_TYPES(RNNKERN_STORED)
  }
#undef RNNKERN_STORED
  f(row.template as<T>());
}

// Converts n elements of rows to T.
template <class T>
[[gnu::noinline]] void widen(Rows<T> row, int64_t n, T* to) {
  as_stored(row, [&](const auto* from) { widen(from, n, to); });
}

// Converts n elements to the type in which rows are stored.
template <class T>
[[gnu::noinline]] void narrow_row(const T* from, int64_t n, Rows<T> row) {
  as_stored(row, [&](auto* to) { narrow_row(from, n, to); });
}

// Units begin..end-1 of the gates of a row in T: the row itself, or a copy converted into `workspace`.
template <class T, class Strip>
RNNKERN_INLINE const T* widened(Rows<T> row, int gates, int64_t hidden, const Strip& strip, T* workspace) {
  if (!row.narrow()) return row.template as<T>();
  for (int64_t at = strip.begin; at < gates * hidden; at += hidden)
    widen(row.from(at), strip.end - strip.begin, workspace + at);
  return workspace;
}

// Stores units begin..end-1 of the gates of a row.
template <class T, class Strip>
RNNKERN_INLINE void store_row(const T* from, int gates, int64_t hidden, const Strip& strip, Rows<T> row) {
  for (int64_t at = strip.begin; at < gates * hidden; at += hidden)
    narrow_row(from + at, strip.end - strip.begin, row.from(at));
}

// The gates of a row of factors in T: the row itself, or `workspace`.
template <class F, class T>
RNNKERN_INLINE T* in_arithmetic(F* row, T* workspace) {
  if constexpr (std::is_same_v<F, T>)
    return row;
  else
    return workspace;
}

}  // namespace
}  // namespace rnnkern
