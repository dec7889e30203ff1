// What a cluster kernel multiplies: M is bfloat16 or float16 as tensors are stored, float, or tfloat32, which float is
// rounded to.
#pragma once

#include <type_traits>

#include "recurrence/cuda/block_tile.cuh"

namespace rnnkern {

// Elements along a product's sum: of a fragment, of 16 bytes of it, and of a register.
template <class M>
struct Along {
  static constexpr int size = int(sizeof(Stored<M>)), fragment = 32 / size, word = 16 / size, one = 4 / size;
};

// x as it is multiplied.
template <class M>
RNNKERN_DEVICE Stored<M> multiplied(float x) {
  if constexpr (std::is_same_v<M, device::tfloat32>) {
    return device::nearest_tfloat32(x);
  } else {
    return device::narrow<M>(x);
  }
}

template <class S>
RNNKERN_DEVICE uint32_t bits_of(S x) {
  return x.bits;
}

template <>
RNNKERN_DEVICE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

// A register of a fragment, whose elements are at(0) and, in 16 bits, at(1).
template <class M, class At>
RNNKERN_DEVICE uint32_t fragment_register(At at) {
  if constexpr (Along<M>::one == 2) {
    return pair(at(0), at(1));
  } else {
    return bits_of(multiplied<M>(at(0)));
  }
}

}  // namespace rnnkern
