// The kernels at one SIMD level.
#include "cpu/level_includes.h"
#include "relevancy/problem.h"

#include "common/simd_target.h"

#include "relevancy/cpu_kernels.h"

namespace rnnkern {

template <class T, SimdLevel>
RelevancyKernels<T> relevancy_kernels_at() {
  return relevancy_kernels<T>();
}

template RelevancyKernels<float> relevancy_kernels_at<float, SimdLevel::RNNKERN_SIMD_LEVEL>();
template RelevancyKernels<double> relevancy_kernels_at<double, SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
