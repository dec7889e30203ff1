// What the CPU drivers of the families share: kernels by the SIMD level in use, and by float32 or float64.
#pragma once

#include <cstddef>

#include "common/simd_level.h"
#include "common/tensor.h"

namespace rnnkern {

// `levels` begin with the plain one; a higher level than the last has no kernels of its own.
template <class T, class Level, size_t count>
const auto& kernels_in_use(const Level (&levels)[count]) {
  const size_t at = size_t(simd_level());
  const Level& level = levels[at < count ? at : count - 1];
  if constexpr (sizeof(T) == 8)
    return level.of_double;
  else
    return level.of_float;
}

// f(double()) or f(float()).
template <class F>
auto by_float_or_double(const Tensor& x, const char* must, F f) {
  if (x.scalar_type() == ScalarType::Double) return f(double());
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float, must);
  return f(float());
}

}  // namespace rnnkern
