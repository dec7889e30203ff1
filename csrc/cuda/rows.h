// The rows of sequences, for all kernels that process steps in order.
#pragma once

#include <cstdint>

#include "device/types.h"

namespace rnnkern::cuda {

// The rows of the (rows, columns) tensors that belong to step t, and which of them are alive.
struct Rows {
  int64_t count, batch, hidden;  // T, B, H
  const int64_t* offsets;        // (T + 1,): the first row of each step; null: each step has B rows
  const int64_t* lengths;        // (B,), or null
  const bool* reset;             // (T, B), or null

  RNNKERN_HOST_DEVICE int64_t offset(int64_t t) const { return offsets ? offsets[t] : t * batch; }
  RNNKERN_HOST_DEVICE int64_t length(int64_t b) const { return lengths ? lengths[b] : count; }
  RNNKERN_HOST_DEVICE bool resets(int64_t t, int64_t b) const { return reset && reset[t * batch + b]; }
};

// Sequences of heads, in either direction.
struct Sequence : Rows {
  int64_t heads;  // K
  bool reverse;

  RNNKERN_HOST_DEVICE int64_t head_size() const { return hidden / heads; }
  RNNKERN_HOST_DEVICE int64_t length(int64_t b) const { return b >= batch ? 0 : Rows::length(b); }
  // The step before step t in a sequence of this length, or -1 for the initial state.
  RNNKERN_HOST_DEVICE int64_t before(int64_t t, int64_t length) const {
    return !reverse ? t - 1 : t + 1 < length ? t + 1 : -1;
  }
};

}  // namespace rnnkern::cuda
