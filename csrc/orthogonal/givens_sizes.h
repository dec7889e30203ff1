// The pairs of layers of Givens rotations and the rows of sequences, for CPU and CUDA kernels.
#pragma once

#include <cstdint>

#include "device/types.h"

namespace rnnkern {

struct GivensSizes {
  int64_t count, vectors, size, layers;  // number of matrices, R, N, L
  bool columns;                          // vectors are the columns of x (N, R); else the rows of x (R, N)
  bool butterfly;

  RNNKERN_HOST_DEVICE int64_t pairs() const { return size / 2; }
  RNNKERN_HOST_DEVICE int64_t angles() const { return layers * pairs(); }
};

// Pair j of a layer consists of elements a = first(j) and b = a + stride.
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

// The rows of the input and of h that belong to each sequence.
struct GivensSequences {
  int64_t steps, batch, reals;  // T, B, elements of a row: N reals, or N numbers with interleaved parts
  const int64_t* rows;          // for each step, the number of rows before it; null: B rows per step
  const int64_t* lengths;       // of each sequence, not increasing; null: all T
  const bool* reset;            // (T, B), or null
  bool reverse;

  RNNKERN_HOST_DEVICE int64_t row(int64_t step, int64_t sequence) const {
    return (rows ? rows[step] : step * batch) + sequence;
  }
  RNNKERN_HOST_DEVICE int64_t length(int64_t sequence) const { return lengths ? lengths[sequence] : steps; }
  // In processing order.
  RNNKERN_HOST_DEVICE int64_t step_at(int64_t place) const { return reverse ? steps - 1 - place : place; }
  RNNKERN_HOST_DEVICE int64_t first_step(int64_t sequence) const { return reverse ? length(sequence) - 1 : 0; }
  RNNKERN_HOST_DEVICE int64_t last_step(int64_t sequence) const { return reverse ? 0 : length(sequence) - 1; }

  // For a sequence of this length, by the index of a step in processing order.
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
