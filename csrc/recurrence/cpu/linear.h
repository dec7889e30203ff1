// The arguments of y = x W^T + b: the input projection of a recurrence by itself.
#pragma once

#include "recurrence/problem.h"

namespace rnnkern {

template <class Float>
struct Linear {
  using T = Float;

  Matrix<T> weight;  // (N, K), not empty
  int64_t rows;
  const T* x;    // (rows, K)
  T* y;          // (rows, N)
  T* workspace;  // as many elements as the kernel says
};

template <class T, SimdLevel>
Kernel<Linear<T>> linear_at();

}  // namespace rnnkern
