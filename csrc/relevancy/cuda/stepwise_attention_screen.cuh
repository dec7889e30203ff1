// The screening of events that leave the buffer.
#pragma once

#include "relevancy/cuda/stepwise_attention_block.cuh"

namespace rnnkern::relevancy {

// Called by one warp. Returns the slot of the relevant set that an event with this score takes: an empty one, or the
// first with the lowest score if that is below `score`; else -1. NaN behaves as in a loop of comparisons: in the first
// slot it prevents replacement, elsewhere it is never the lowest.
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
