// The arguments of the kernels for layers of Givens rotations: pointers and sizes, all checked and allocated by the
// caller. Tensors are contiguous.
#pragma once

#include <cstdint>

#include "common/simd_level.h"
#include "common/team.h"
#include "orthogonal/givens_sizes.h"

namespace rnnkern {

template <class T>
struct GivensForward {
  GivensSizes sizes;
  const T *angles, *x;
  T* y;
  T* workspace;
};

template <class T>
struct GivensBackward {
  GivensSizes sizes;
  const T *angles, *y, *grad;
  T *grad_angles, *grad_x;  // grad_x may be null
  T* workspace;
};

// Pairs first..last - 1 of a layer.
struct GivensPiece {
  int64_t layer, first, last;
};

// h_t = modrelu(u_t + F_L ... F_1 D h_{t-1}; b).
template <class T>
struct GivensRecurrence {
  GivensSizes sizes;
  GivensSequences sequences;
  const GivensPiece* pieces;  // of all layers, in an order that respects their dependencies
  int64_t piece_count;
  const T *angles, *phases, *diagonal;  // phases of F and of D for complex numbers, else null
  const T *bias, *u, *h0;
  T* workspace;

  int64_t numbers() const { return sizes.size; }
  bool is_complex() const { return diagonal; }
  // Number of parameters: angles, phases of F and of D, b.
  int64_t parameters() const { return (is_complex() ? 2 : 1) * (sizes.angles() + numbers()); }
};

template <class T>
struct GivensRecurrenceForward : GivensRecurrence<T> {
  T *h, *last;
};

template <class T>
struct GivensRecurrenceBackward : GivensRecurrence<T> {
  const T *h, *grad_h, *grad_last;  // each gradient may be null
  T *grad_u, *grad_h0, *grad_angles, *grad_phases, *grad_diagonal, *grad_bias;
};

template <class T>
struct GivensKernels {
  Kernel<GivensForward<T>> forward;
  Kernel<GivensBackward<T>> backward;
  Kernel<GivensRecurrenceForward<T>> recurrence_forward;
  Kernel<GivensRecurrenceBackward<T>> recurrence_backward;

  // Defined by the level source, once per SIMD level.
  template <SimdLevel>
  static GivensKernels at();
};

}  // namespace rnnkern
