// Memory of large tensors that live from a forward to its backward or as long as a call, kept for the next ones: taking
// fresh pages from the system costs several times what it costs to write them once.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// Uninitialised, on the CPU. What is kept idle never makes the sum with what is in use exceed the most that was in use
// at once, and goes after ten seconds, at the next call that takes or gives some.
Tensor cached_empty(const Tensor& like, const std::vector<int64_t>& sizes, ScalarType dtype);

// Of the sizes of `x`, and of its dtype unless another is named.
inline Tensor reusable_like(const Tensor& x, std::optional<ScalarType> dtype = {}) {
  return cached_empty(x, sizes_with(x, 0, {}), dtype.value_or(x.scalar_type()));
}

// Gives back all that is idle; returns the bytes.
int64_t release_memory();

}  // namespace rnnkern
