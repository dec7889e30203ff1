// Sums over lanes of a warp with the primitives, always in the same order.
#pragma once

#include <cstring>

#include "device/device.h"

namespace rnnkern::device {

// The value of another lane, of 4 or 8 bytes.
template <class T>
RNNKERN_DEVICE T shuffle_xor_any(T x, int mask) {
  if constexpr (sizeof(T) == 4) {
    return shuffle_xor(x, mask);
  } else {
    uint32_t words[2];
    std::memcpy(words, &x, 8);
    for (uint32_t& word : words) word = shuffle_xor(word, mask);
    std::memcpy(&x, words, 8);
    return x;
  }
}

// Over groups of neighbouring lanes: all of a group get its sum.
template <int lanes, class T>
RNNKERN_DEVICE T group_sum(T x) {
  RNNKERN_UNROLL
  for (int mask = lanes / 2; mask > 0; mask /= 2) x += shuffle_xor_any(x, mask);
  return x;
}

template <class T>
RNNKERN_DEVICE T warp_sum(T x) {
  return group_sum<warp_size>(x);
}

}  // namespace rnnkern::device
