// What the CPU drivers of the recurrence share: the strip functions of a call, and conversions between the storage type
// S and the type of its arithmetic.
#pragma once

#include "common/caching_allocator.h"
#include "cpu/levels.h"
#include "recurrence/call.h"

namespace rnnkern {

template <class S>
Strips<Arithmetic<S>> strips(const Call& call) {
  if (const CompiledStrips* compiled = call.known.strips) {
    if constexpr (std::is_same_v<S, double>) return compiled->float64;
    if constexpr (!std::is_same_v<S, double>) return compiled->float32;
  }
  return at_level_in_use([&]<SimdLevel level>() { return strips_at<Arithmetic<S>, level>(call.known.cell_id); });
}

// Converts x to the arithmetic type of S; returns x itself if it already has that type.
template <class S>
Tensor widened(const Tensor& x) {
  if constexpr (!narrow<S>) return x;
  const Tensor wide = reusable_like(x, arithmetic<S>);
  copy(wide, x);
  return wide;
}

// Converts x to the storage type S.
template <class S>
Tensor narrowed(const Call& call, const Tensor& wide) {
  if constexpr (!narrow<S>) return wide;
  const Tensor stored = empty_of_sizes(call.u, wide);
  copy(stored, wide);
  return stored;
}

// Converts all arguments whose size does not depend on the sequence length.
template <class S>
void widen(Call& call) {
  call.R = widened<S>(call.R);
  if (call.W) call.W = widened<S>(*call.W);
  if (call.bias_ih) call.bias_ih = widened<S>(*call.bias_ih);
  for (Tensor& x : call.state) x = widened<S>(x);
  for (Tensor& x : call.params) x = widened<S>(x);
  if (call.bias) call.bias = widened<S>(*call.bias);
  if (call.keep) call.keep = widened<S>(*call.keep);
}

}  // namespace rnnkern
