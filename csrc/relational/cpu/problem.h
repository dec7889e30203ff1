// The arguments of the kernels of similarity: pointers and sizes, all checked and allocated by the caller. Tensors are
// contiguous.
#pragma once

#include <cstdint>

#include "common/simd_level.h"
#include "common/team.h"

namespace rnnkern {

enum class Mask { causal, strict, full };

struct SimilarityRule {
  int64_t batch, objects, features, values;  // B, T, d, e
  int64_t share;                             // number of samples that share a row of weight and bias
  const int64_t* segments;                   // lengths of the segments
  int64_t segment_count;
  const int64_t* lengths;  // per sample, in [0, T]; may be null
  bool normalizes;
  int correction;  // the variance is a sum over n - correction
  double eps, scale;
  Mask mask;
  bool packed;

  int64_t there(int64_t sample) const { return lengths ? lengths[sample] : objects; }
  // Number of members of row i, which are its first columns, among `there` objects.
  int64_t members(int64_t i, int64_t there) const {
    if (i >= there) return 0;
    return mask == Mask::causal ? i + 1 : mask == Mask::strict ? i : there;
  }
  // Length of row i in memory, and the number of elements before it.
  int64_t width(int64_t i) const { return !packed ? objects : mask == Mask::causal ? i + 1 : i; }
  int64_t offset(int64_t i) const {
    return !packed ? i * objects : mask == Mask::causal ? i * (i + 1) / 2 : i * (i - 1) / 2;
  }
  int64_t size() const { return offset(objects); }
};

template <class T>
struct SimilarityForward {
  SimilarityRule rule;
  const T *x, *y, *weight, *bias, *values;  // all but x may be null
  T *R, *scores, *product;                  // the last two may be null
  T* workspace;
};

template <class T>
struct SimilarityBackward {
  SimilarityRule rule;
  const T *grad_R, *grad_scores, *grad_product;  // may be null
  const T *x, *y, *weight, *bias, *values, *R;   // y, weight, bias and values may be null
  T *grad_x, *grad_y, *grad_values;
  T *grad_weight, *grad_bias;  // (pieces, d): of each piece
  T* workspace;
};

// Samples of a row of weight and bias, whose gradients are summed by pieces, whatever the number of threads.
constexpr int64_t samples_of_piece = 16;

inline int64_t pieces_of(int64_t share) { return (share + samples_of_piece - 1) / samples_of_piece; }

// Parts are samples in the forward pass, pieces in the backward pass.
template <class T>
struct SimilarityKernels {
  KernelOfParts<SimilarityForward<T>> forward;
  KernelOfParts<SimilarityBackward<T>> backward;

  // Defined by the level source, once per SIMD level.
  template <SimdLevel>
  static SimilarityKernels at();
};

}  // namespace rnnkern
