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

// Sequences of states side by side: which rows of the input and of h are whose.
struct GivensSequences {
  int64_t steps, batch, reals;  // T, B, and what a row has: N numbers, or the real and imaginary parts of N in turns
  const int64_t* rows;          // of each step, how many rows come before it; null: B of each step before
  const int64_t* lengths;       // of each sequence, never growing; null: T of each
  const bool* reset;            // (T, B), or null
  bool reverse;

  int64_t row(int64_t step, int64_t sequence) const { return (rows ? rows[step] : step * batch) + sequence; }
  int64_t length(int64_t sequence) const { return lengths ? lengths[sequence] : steps; }
  // In the order of processing.
  int64_t step_at(int64_t place) const { return reverse ? steps - 1 - place : place; }
  int64_t first_step(int64_t sequence) const { return reverse ? length(sequence) - 1 : 0; }
  int64_t last_step(int64_t sequence) const { return reverse ? 0 : length(sequence) - 1; }
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
  const GivensPiece* pieces;  // of all layers, each after those that it waits for
  int64_t piece_count;
  const T *angles, *phases, *diagonal;  // the phases of F and of D: of complex numbers alone, else null
  const T *bias, *u, *h0;
  T* room;

  int64_t numbers() const { return sizes.size; }
  bool is_complex() const { return diagonal; }
  // Of what is learnt: angles, phases of F and of D, b.
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
  GivensKernel<GivensRecurrenceForward<T>> recurrence_forward;
  GivensKernel<GivensRecurrenceBackward<T>> recurrence_backward;
};

struct GivensLevel {
  GivensKernels<float> of_float;
  GivensKernels<double> of_double;
};

GivensLevel givens_level_plain();
GivensLevel givens_level_avx2();
GivensLevel givens_level_avx512();

}  // namespace rnnkern
