// Which slot of the relevant set an event takes that leaves the buffer.
#pragma once

#include "relevancy/cuda/stepwise_attention_block.cuh"

namespace rnnkern::relevancy {

// Of one warp: the slot that an event of this score takes, an empty one or the first with the least score where its
// own is more, or -1. A first score that is NaN stays, others are never the least: as one comparison after another
// has it.
template <class T>
RNNKERN_DEVICE int64_t screen(const int64_t* ids, const T* scores, int64_t size, T score) {
  const int64_t none = INT32_MAX;
  int64_t empty = none, least = none;
  T value = 0;
  for (int64_t k = device::lane(); k < size; k += device::warp_size) {
    if (ids[k] < 0 && empty == none) empty = k;
    const T x = scores[k];
    if ((least == none || x < value) && x == x) {
      value = x;
      least = k;
    }
  }
  RNNKERN_UNROLL
  for (int mask = device::warp_size / 2; mask > 0; mask /= 2) {
    const T other = shuffle_xor_any(value, mask);
    const int64_t where = shuffle_xor_any(least, mask), open = shuffle_xor_any(empty, mask);
    if (where != none && (least == none || other < value || (other == value && where < least))) {
      value = other;
      least = where;
    }
    if (open < empty) empty = open;
  }
  if (empty != none) return empty;
  if (least == none || scores[0] != scores[0]) return -1;
  return score > value ? least : -1;
}

}  // namespace rnnkern::relevancy
