// What a kernel of this family is told: pointers and sizes, all checked and allocated by the caller. Tensors are dense.
#pragma once

#include <cstdint>

#include "common/simd_level.h"
#include "common/team.h"

namespace rnnkern {

// A row is what stands side by side at one step: `groups` of `width` reals each. A group is one sequence where
// sequences differ in length or are reset, else all of them. A complex number is two reals.
struct ScanSizes {
  int64_t steps, groups, width;
  const int64_t* offsets;  // of each step, how many rows come before it; null: `groups` of each step before
  const int64_t* lengths;  // of each group, in steps; null: all of them
  const bool* reset;       // (steps, groups), or null
  bool complex, per_step, reverse;

  int64_t row(int64_t step) const { return (offsets ? offsets[step] : step * groups) * width; }
  int64_t length(int64_t group) const { return lengths ? lengths[group] : steps; }
  bool is_reset(int64_t step, int64_t group) const { return reset && reset[step * groups + group]; }
};

template <class T>
struct ScanForward {
  ScanSizes sizes;
  const T *a, *x;  // a is like x, or one group of it for all steps
  const T* h0;     // of all groups, or null
  T* h;            // or null
  T* last;         // the state, while the kernel runs
};

template <class T>
struct ScanBackward {
  ScanSizes sizes;
  const T *grad_h, *grad_last;  // each may be null
  const T *a, *h0, *h;
  T* grad_x;
  T* grad_h0;  // the state's gradient, while the kernel runs
  T* grad_a;   // or null; of a constant one, what each column of all groups gives, added to what is there
};

// What a moment filter is made of; scan/cpu/ema_filter.h has the equations.
template <class T>
struct MomentRule {
  T mu, s, beta, eps;
  bool squares;   // whether there is a q
  int64_t every;  // steps of a piece, before which v and q are kept
};

constexpr int64_t longest_piece = 16;

// How far a kernel goes down a strip before the next: the rows stay streams. Rows that lie a power of two apart share
// their places in the first cache, which has eight of each: four that are read and four that are written fit. Where
// more than three tensors are gone through, half as many.
constexpr int64_t few_steps = 4;

template <class T>
struct MomentsForward {
  ScanSizes sizes;
  MomentRule<T> rule;
  const T *u, *v0, *q0;  // the states of all groups, each may be null
  T* y;
  T *v, *q;  // the state, while the kernel runs
  T* kept;   // (pieces - 1, 2, groups, width), or null
};

template <class T>
struct MomentsBackward {
  ScanSizes sizes;
  MomentRule<T> rule;
  const T *grad_y, *grad_v, *grad_q;  // each may be null
  const T *u, *v0, *q0, *kept;        // read where there is a q
  T* grad_u;
  T *grad_v0, *grad_q0;  // the state's gradient, while the kernel runs
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
