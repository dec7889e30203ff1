// The arguments of the kernels of orthogonal weights: pointers and sizes, all checked and allocated by the caller.
// Matrices are N x N, contiguous, one after another.
#pragma once

#include <cstdint>
#include <iterator>

#include "common/simd_level.h"
#include "common/team.h"
#include "orthogonal/cpu/schemes.h"

namespace rnnkern {

// Products that the forward saves for the backward: those of the longest scheme, without the last one, the result.
template <class T>
constexpr int kept_products = sizeof(T) == 8 ? 3 : 2;

// Matrices with at most this number of rows, in double, are computed one per lane, and keep nothing (lanes.h).
constexpr int64_t most_in_lanes = 16;
template <class T>
constexpr bool in_lanes(int64_t n) {
  return sizeof(T) == 8 && n <= most_in_lanes;
}

// Numbers per matrix: the scheme, and the number of squarings.
constexpr int plan_size = 2;

template <class T>
constexpr const SkewScheme* schemes = sizeof(T) == 8 ? double_schemes : float_schemes;
template <class T>
constexpr int scheme_count = sizeof(T) == 8 ? std::size(double_schemes) : std::size(float_schemes);

template <class T>
struct SkewForward {
  int64_t size;         // N
  bool minus_identity;  // exp(S) - I
  const T* A;           // only the strict lower triangle is read
  T* result;
  T* kept;        // kept_products of each matrix, or null: then they are in the workspace
  int64_t* plan;  // of each matrix, or null
  T* workspace;
};

template <class T>
struct SkewBackward {
  int64_t size;
  int64_t squarings;  // the maximum over all matrices
  const T *A, *kept, *grad;
  const int64_t* plan;
  T* grad_A;
  T* workspace;
};

// P (Lambda + T) P^T, with N / 2 angles and (N + 1) / 2 moduli for each matrix.
template <class T>
struct SchurForward {
  int64_t size;
  const T *P, *theta, *gamma, *lower;
  T *result, *half;  // half is P (Lambda + T), for the backward
  T* workspace;
};

template <class T>
struct SchurBackward {
  int64_t size;
  const T *P, *theta, *gamma, *lower, *half, *grad;
  T *grad_P, *grad_theta, *grad_gamma, *grad_lower;
  T* workspace;
};

// Parts are matrices, which a team processes one by one.
template <class T>
struct OrthogonalKernels {
  KernelOfParts<SkewForward<T>> skew_forward;
  KernelOfParts<SkewBackward<T>> skew_backward;
  KernelOfParts<SchurForward<T>> schur_forward;
  KernelOfParts<SchurBackward<T>> schur_backward;

  // Defined by the level source, once per SIMD level.
  template <SimdLevel>
  static OrthogonalKernels at();
};

}  // namespace rnnkern
