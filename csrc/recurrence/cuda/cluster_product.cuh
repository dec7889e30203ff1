// The operand type M of the products of a cluster kernel: bfloat16 or float16, as tensors are stored; float; or
// tfloat32, to which float is rounded.
#pragma once

#include <type_traits>

#include "recurrence/cuda/block_tile.cuh"

namespace rnnkern {

// Elements along the inner dimension: of a fragment, of 16 bytes of it, and of a register.
template <class M>
struct Along {
  static constexpr int size = int(sizeof(Stored<M>)), fragment = 32 / size, word = 16 / size, one = 4 / size;
};

// Rounds x to the operand type.
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

// A register of a fragment, with elements at(0) and, in 16-bit types, at(1).
template <class M, class At>
RNNKERN_DEVICE uint32_t fragment_register(At at) {
  if constexpr (Along<M>::one == 2) {
    return pair(at(0), at(1));
  } else {
    return bits_of(multiplied<M>(at(0)));
  }
}

}  // namespace rnnkern
