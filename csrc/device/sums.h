// Sums over lanes of a warp with the primitives, always in the same order.
#pragma once

#include <cstring>

#include "device/device.h"

namespace rnnkern::device {

// Applies `exchange`, which takes 4 bytes, to every word of a value.
template <class T, class Exchange>
RNNKERN_DEVICE T by_words(T x, Exchange exchange) {
  uint32_t words[sizeof(T) / 4];
  std::memcpy(words, &x, sizeof x);
  RNNKERN_UNROLL
  for (uint32_t& word : words) word = exchange(word);
  std::memcpy(&x, words, sizeof x);
  return x;
}

template <class T>
RNNKERN_DEVICE T shuffle_xor_any(T x, int mask) {
  return by_words(x, [=](uint32_t word) { return shuffle_xor(word, mask); });
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
