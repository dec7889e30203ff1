// What a kernel of layers of rotations is told: pointers and sizes, all checked and allocated by the caller. Tensors
// are dense.
#pragma once

#include <cstdint>

#include "common/team.h"

namespace rnnkern {

struct GivensSizes {
  int64_t count, vectors, size, layers;  // matrices of angles, R, N, L
  bool columns;                          // of x, (N, R), are the vectors; else rows, (R, N)
  bool butterfly;

  int64_t pairs() const { return size / 2; }
  int64_t angles() const { return layers * pairs(); }
};

// Pair j of a layer is j's a and b = a + stride.
struct GivensLayer {
  int64_t pairs, offset, stride;

  int64_t first(int64_t j) const { return offset + 2 * j - (j & (stride - 1)); }
};

inline GivensLayer layer_of(const GivensSizes& sizes, int64_t layer) {
  if (!sizes.butterfly) return {(sizes.size - layer % 2) / 2, layer % 2, 1};
  int64_t stages = 0;
  while (int64_t(2) << stages < sizes.size) ++stages;
  return {sizes.size / 2, 0, int64_t(1) << layer % (stages + 1)};
}

template <class T>
struct GivensForward {
  GivensSizes sizes;
  const T *angles, *x;
  T* y;
  T* room;
};

template <class T>
struct GivensBackward {
  GivensSizes sizes;
  const T *angles, *y, *grad;
  T *grad_angles, *grad_x;  // the last may be null
  T* room;
};

// What runs a problem, shared out among a team, and the room that it takes.
template <class Problem>
struct GivensKernel {
  void (*run)(const Problem&, Member);
  int64_t (*room)(const Problem&, int team);
};

template <class T>
struct GivensKernels {
  GivensKernel<GivensForward<T>> forward;
  GivensKernel<GivensBackward<T>> backward;
};

struct GivensLevel {
  GivensKernels<float> of_float;
  GivensKernels<double> of_double;
};

GivensLevel givens_level_plain();
GivensLevel givens_level_avx2();
GivensLevel givens_level_avx512();

}  // namespace rnnkern
