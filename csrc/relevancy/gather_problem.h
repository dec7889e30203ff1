// What a kernel of attention to chosen states is told: pointers and sizes, all checked and allocated by the caller.
// Tensors are dense.
#pragma once

#include <cstdint>

#include "common/simd_level.h"
#include "common/team.h"

namespace rnnkern {

struct GatherSizes {
  int64_t batch, steps, memories, slots, hidden;  // B, T, M, kappa, n
  int64_t share;                                  // samples that have one v in common
};

template <class T>
struct GatherForward {
  GatherSizes sizes;
  bool dot;
  const T *q, *u, *h, *v;
  const int32_t* idx;
  T *out, *lse, *weights;  // the last two may be null
  T* room;
};

template <class T>
struct GatherBackward {
  GatherSizes sizes;
  bool dot;
  const T *q, *u, *h, *v;
  const int32_t* idx;
  const T *grad, *lse;
  T *grad_q, *grad_u, *grad_h;
  T* grad_v;  // (B, n): of each sample
  T* room;
};

// What runs rows (forward) or samples (backward) first..last-1 of a problem, shared out among a team, and the room that
// the team takes.
template <class Problem>
struct GatherKernel {
  void (*run)(const Problem&, int64_t first, int64_t last, Member);
  int64_t (*room)(const Problem&, int team);
};

template <class T>
struct GatherKernels {
  GatherKernel<GatherForward<T>> forward;
  GatherKernel<GatherBackward<T>> backward;
};

// Defined by the level source, once per SIMD level.
template <class T, SimdLevel level>
GatherKernels<T> gather_kernels_at();

}  // namespace rnnkern
