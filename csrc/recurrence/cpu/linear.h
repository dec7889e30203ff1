// The arguments of y = x W^T + b: the input projection of a recurrence by itself.
#pragma once

#include "recurrence/problem.h"

namespace rnnkern {

template <class Float>
struct Linear {
  using T = Float;

  Matrix<T> weight;  // (N, K), not empty
  int64_t rows;
  bool by_rows;  // threads divide the rows, otherwise the outputs
  bool at_once;  // all rows are one chunk, and each panel of the weight is packed immediately before its only use
  const T* x;    // (rows, K)
  T* y;          // (rows, N)
  T* workspace;  // as many elements as the kernel says
};

template <class T, SimdLevel>
Kernel<Linear<T>> linear_at();

}  // namespace rnnkern
