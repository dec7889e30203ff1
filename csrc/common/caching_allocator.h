// Caching CPU allocator for large tensors that live for one call, or from a forward pass to its backward pass. Reusing
// memory avoids page faults: getting fresh pages from the system takes several times as long as writing them.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// An uninitialized CPU tensor. Idle plus used bytes never exceed the peak of used bytes. A block that has been idle for
// ten seconds is freed at the next allocation or deallocation.
Tensor cached_empty(const Tensor& like, const std::vector<int64_t>& sizes, ScalarType dtype);

// Like cached_empty, with the sizes of `x` and, by default, its dtype.
inline Tensor reusable_like(const Tensor& x, std::optional<ScalarType> dtype = {}) {
  return cached_empty(x, sizes_with(x, 0, {}), dtype.value_or(x.scalar_type()));
}

// Frees all idle memory and returns its size in bytes.
int64_t release_memory();

}  // namespace rnnkern
