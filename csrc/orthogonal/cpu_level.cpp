// The kernels at one SIMD level.
#include "cpu/level_includes.h"
#include "orthogonal/problem.h"

#include "common/simd_target.h"

#include "orthogonal/cpu_kernels.h"

namespace rnnkern {

template <class T, SimdLevel>
OrthogonalKernels<T> orthogonal_kernels_at() {
  return orthogonal_kernels<T>();
}

template OrthogonalKernels<float> orthogonal_kernels_at<float, SimdLevel::RNNKERN_SIMD_LEVEL>();
template OrthogonalKernels<double> orthogonal_kernels_at<double, SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
