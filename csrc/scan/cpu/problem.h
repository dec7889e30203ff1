// The arguments of the kernels of this family: pointers and sizes, checked and allocated by the caller. Tensors are
// contiguous.
#pragma once

#include <cstdint>

#include "common/simd_level.h"
#include "common/team.h"

namespace rnnkern {

// A row holds the elements of one step: `groups` of `width` reals each. A group is one sequence if sequences have
// different lengths or are reset, otherwise all sequences. A complex number is two reals.
struct ScanSizes {
  int64_t steps, groups, width;
  const int64_t* offsets;  // for each step, the number of rows before it; null: `groups` per step
  const int64_t* lengths;  // of each group, in steps; null: all steps
  const bool* reset;       // (steps, groups), or null
  bool complex, per_step, reverse;

  int64_t row(int64_t step) const { return (offsets ? offsets[step] : step * groups) * width; }
  int64_t length(int64_t group) const { return lengths ? lengths[group] : steps; }
  bool is_reset(int64_t step, int64_t group) const { return reset && reset[step * groups + group]; }
};

template <class T>
struct ScanForward {
  ScanSizes sizes;
  const T *a, *x;  // a has the sizes of x, or is one group for all steps
  const T* h0;     // of all groups, or null
  T* h;            // or null
  T* last;         // the state, during the computation
};

template <class T>
struct ScanBackward {
  ScanSizes sizes;
  const T *grad_h, *grad_last;  // each may be null
  const T *a, *h0, *h;
  T* grad_x;
  T* grad_h0;  // the state's gradient, during the computation
  T* grad_a;   // or null; for a constant a the sum over time, per column of all groups, added to the previous content
};

// The parameters of a moment filter; scan/cpu/moments.h has the equations.
template <class T>
struct MomentRule {
  T mu, s, beta, eps;
  bool squares;   // whether there is a q
  int64_t every;  // steps of a piece, before which v and q are saved
};

constexpr int64_t longest_piece = 16;

// Steps that a kernel processes in a block of columns before the next block, so that rows are still read as streams.
// Rows whose distance is a power of two compete for the same eight entries of the L1 cache: four rows that are read and
// four that are written fit. Kernels with more than three tensors use half as many.
constexpr int64_t few_steps = 4;

template <class T>
struct MomentsForward {
  ScanSizes sizes;
  MomentRule<T> rule;
  const T *u, *v0, *q0;  // v0, q0: the states of all groups, may be null
  T* y;
  T *v, *q;  // the state, during the computation
  T* kept;   // (pieces - 1, 2, groups, width), or null
};

template <class T>
struct MomentsBackward {
  ScanSizes sizes;
  MomentRule<T> rule;
  const T *grad_y, *grad_v, *grad_q;  // each may be null
  const T *u, *v0, *q0, *kept;        // only read if there is a q
  T* grad_u;
  T *grad_v0, *grad_q0;  // the state's gradient, during the computation
};

template <class T>
struct ScanKernels {
  void (*forward)(const ScanForward<T>&, ThreadContext);
  void (*backward)(const ScanBackward<T>&, ThreadContext);
  void (*moments_forward)(const MomentsForward<T>&, ThreadContext);
  void (*moments_backward)(const MomentsBackward<T>&, ThreadContext);

  // Defined by the level source, once per SIMD level.
  template <SimdLevel>
  static ScanKernels at();
};

}  // namespace rnnkern
