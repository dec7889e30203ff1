// Which pairs layers of rotations take, and which rows are whose: for kernels of a CPU and of a GPU.
#pragma once

#include <cstdint>

#include "device/types.h"

namespace rnnkern {

struct GivensSizes {
  int64_t count, vectors, size, layers;  // matrices of angles, R, N, L
  bool columns;                          // of x, (N, R), are the vectors; else rows, (R, N)
  bool butterfly;

  RNNKERN_HOST_DEVICE int64_t pairs() const { return size / 2; }
  RNNKERN_HOST_DEVICE int64_t angles() const { return layers * pairs(); }
};

// Pair j of a layer is j's a and b = a + stride.
struct GivensLayer {
  int64_t pairs, offset, stride;

  RNNKERN_HOST_DEVICE int64_t first(int64_t j) const { return offset + 2 * j - (j & (stride - 1)); }
};

RNNKERN_HOST_DEVICE GivensLayer layer_of(const GivensSizes& sizes, int64_t layer) {
  if (!sizes.butterfly) return {(sizes.size - layer % 2) / 2, layer % 2, 1};
  int64_t stages = 0;
  while (int64_t(2) << stages < sizes.size) ++stages;
  return {sizes.size / 2, 0, int64_t(1) << layer % (stages + 1)};
}

// Sequences of states side by side: which rows of the input and of h are whose.
struct GivensSequences {
  int64_t steps, batch, reals;  // T, B, and what a row has: N numbers, or the real and imaginary parts of N in turns
  const int64_t* rows;          // of each step, how many rows come before it; null: B of each step before
  const int64_t* lengths;       // of each sequence, never growing; null: T of each
  const bool* reset;            // (T, B), or null
  bool reverse;

  RNNKERN_HOST_DEVICE int64_t row(int64_t step, int64_t sequence) const {
    return (rows ? rows[step] : step * batch) + sequence;
  }
  RNNKERN_HOST_DEVICE int64_t length(int64_t sequence) const { return lengths ? lengths[sequence] : steps; }
  // In the order of processing.
  RNNKERN_HOST_DEVICE int64_t step_at(int64_t place) const { return reverse ? steps - 1 - place : place; }
  RNNKERN_HOST_DEVICE int64_t first_step(int64_t sequence) const { return reverse ? length(sequence) - 1 : 0; }
  RNNKERN_HOST_DEVICE int64_t last_step(int64_t sequence) const { return reverse ? 0 : length(sequence) - 1; }

  // Of a sequence of this length, by the place of a step in the order in which it is processed.
  RNNKERN_HOST_DEVICE int64_t own_step(int64_t place, int64_t length) const {
    return reverse ? length - 1 - place : place;
  }
  RNNKERN_HOST_DEVICE int64_t row_at(int64_t place, int64_t length, int64_t sequence) const {
    return row(own_step(place, length), sequence);
  }
  RNNKERN_HOST_DEVICE bool resets(int64_t place, int64_t length, int64_t sequence) const {
    return reset && reset[own_step(place, length) * batch + sequence];
  }
};

}  // namespace rnnkern
