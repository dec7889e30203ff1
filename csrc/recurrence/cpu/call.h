// What the CPU drivers of the recurrence share: a call's kernels, strip functions and problem, and conversions between
// its dtype and that of its arithmetic, T, which is float32 for 16-bit dtypes.
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

// Whether a call's products multiply bfloat16.
inline bool multiplies_bfloat16(const Call& call) {
  return is_built(SimdLevel::avx512_bf16) && call.dtype == ScalarType::BFloat16 &&
         simd_level() >= SimdLevel::avx512_bf16;
}

// A cell's kernels for the SIMD level in use.
template <class T>
Kernels<T> kernels(const Call& call) {
  const int cell_id = call.known.cell_id;
  if constexpr (std::is_same_v<T, float> && is_built(SimdLevel::avx512_bf16))
    if (multiplies_bfloat16(call)) return kernels_at<device::bfloat16, SimdLevel::avx512_bf16>(cell_id);
  return at_level_in_use([&]<SimdLevel level>() { return kernels_at<T, level>(cell_id); });
}

// The bfloat16 parts of the factors of a call's products, or 0: without tiles. Nothing counts that changes if a batch
// or its computation is divided among threads, or a sequence among calls.
inline int parts_in_use(const Call& call) {
  constexpr int64_t least_rows = 4;  // fewer take as long without tiles
  if (simd_level() != SimdLevel::amx || call.steps.batch < least_rows) return 0;
  return call.dtype == ScalarType::BFloat16 ? 1 : call.dtype == ScalarType::Float ? call.parts : 0;
}

// What the problems of both directions have in common.
template <class T, class Problem>
void set_common(Problem& p, const Call& call) {
  p.cell = call.cell;
  p.strips = strips<T>(call);
  p.steps = call.steps;
  p.parts = parts_in_use(call);
  p.weights = call.weights<T>();
  (call.W ? p.x : p.u) = read_rows<T>(call.u);
  p.u_repeats = call.u_repeats;
  p.reset = read<bool>(call.reset);
  p.noise = call.noise;
  p.keep = call.weights_of_old<T>();
}

// The last step before a call runs. It converts tensors of `call`, so what results need in the caller's dtype is read
// before.
inline void prepare(Call& call, const char* direction, int64_t parts) {
  call.set_parts(parts);
  count_kernel("recurrence/cpu", direction, call.cell.name);
  widen(call, !multiplies_bfloat16(call));
}

}  // namespace rnnkern
