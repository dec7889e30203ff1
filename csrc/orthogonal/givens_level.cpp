// The kernels at one SIMD level.
#include "cpu/level_includes.h"
#include "orthogonal/givens_problem.h"

#include "common/simd_target.h"

#include "orthogonal/givens_kernels.h"

namespace rnnkern {

template <class T, SimdLevel>
GivensKernels<T> givens_kernels_at() {
  return givens_kernels<T>();
}

template GivensKernels<float> givens_kernels_at<float, SimdLevel::RNNKERN_SIMD_LEVEL>();
template GivensKernels<double> givens_kernels_at<double, SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
