// The kernels at one SIMD level.
#include "cpu/level_includes.h"
#include "relevancy/gather_problem.h"

#include "common/simd_target.h"

#include "relevancy/gather_kernels.h"

namespace rnnkern {

template <class T, SimdLevel>
GatherKernels<T> gather_kernels_at() {
  return gather_kernels<T>();
}

template GatherKernels<float> gather_kernels_at<float, SimdLevel::RNNKERN_SIMD_LEVEL>();
template GatherKernels<double> gather_kernels_at<double, SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
