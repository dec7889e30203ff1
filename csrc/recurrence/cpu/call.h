// What the CPU drivers of the recurrence share: the strip functions of a call, and conversions between its dtype and
// that of its arithmetic, T, which is float32 for 16-bit dtypes.
#pragma once

#include "common/caching_allocator.h"
#include "cpu/levels.h"
#include "recurrence/call.h"

namespace rnnkern {

// How rows of that dtype are stored.
inline Storage storage(ScalarType dtype) {
  return by_storage(dtype, []<class S>(S) { return storage_of<S>; });
}

inline bool is_narrow(const Call& call) { return storage(call.dtype) != Storage::arithmetic; }

// Calls f(double()) or f(float()), the type of a call's arithmetic.
template <class F>
auto by_arithmetic(const Call& call, F f) {
  return call.dtype == ScalarType::Double ? f(double()) : f(float());
}

template <class T>
Strips<T> strips(const Call& call) {
  if (const CompiledStrips* compiled = call.known.strips) {
    if constexpr (std::is_same_v<T, double>) return compiled->float64;
    if constexpr (!std::is_same_v<T, double>) return compiled->float32;
  }
  return at_level_in_use([&]<SimdLevel level>() { return strips_at<T, level>(call.known.cell_id); });
}

template <class T>
Rows<T> read_rows(const Tensor& x) {
  return {read<void>(x), storage(x.scalar_type())};
}

template <class T>
Rows<T> write_rows(const Tensor& x) {
  return {write<void>(x), storage(x.scalar_type())};
}

// Converts x from the dtype of the call to that of its arithmetic; returns x itself if it already has it.
inline Tensor widened(const Call& call, const Tensor& x) {
  if (!is_narrow(call)) return x;
  const Tensor wide = reusable_like(x, ScalarType::Float);
  copy(wide, x);
  return wide;
}

// Converts x to the dtype of the call.
inline Tensor narrowed(const Call& call, const Tensor& wide) {
  if (!is_narrow(call)) return wide;
  const Tensor stored = empty_of_sizes(call.u, wide);
  copy(stored, wide);
  return stored;
}

// Converts all arguments whose size does not depend on the sequence length, except matrices that are multiplied as they
// are stored.
inline void widen(Call& call, bool matrices = true) {
  if (matrices) {
    call.R = widened(call, call.R);
    if (call.W) call.W = widened(call, *call.W);
  }
  for (OptionalTensor* x : {&call.bias_ih, &call.bias, &call.keep})
    if (*x) *x = widened(call, **x);
  for (Tensor& x : call.state) x = widened(call, x);
  if (matrices || !call.cell.projected)
    for (Tensor& x : call.params) x = widened(call, x);
}

}  // namespace rnnkern
