// The arguments of the kernels of gather_attention: pointers and sizes, all checked and allocated by the caller.
// Tensors are contiguous.
#pragma once

#include <cstdint>

#include "common/simd_level.h"
#include "common/team.h"

namespace rnnkern {

struct GatherSizes {
  int64_t batch, steps, memories, slots, hidden;  // B, T, M, kappa, n
  int64_t share;                                  // number of samples that share a row of v
};

template <class T>
struct GatherProblem {
  GatherSizes sizes;
  bool dot;
  const T *q, *u, *h, *v;
  const int32_t* idx;
  T* workspace;
};

template <class T>
struct GatherForward : GatherProblem<T> {
  T *out, *lse, *weights;  // the last two may be null
};

template <class T>
struct GatherBackward : GatherProblem<T> {
  const T *grad, *lse;
  T *grad_q, *grad_u, *grad_h;
  T* grad_v;  // (B, n): per sample
};

// Parts are rows in the forward, samples in the backward.
template <class T>
struct GatherKernels {
  KernelOfParts<GatherForward<T>> forward;
  KernelOfParts<GatherBackward<T>> backward;

  // Defined by the level source, once per SIMD level.
  template <SimdLevel>
  static GatherKernels at();
};

}  // namespace rnnkern
