// The kernels at one SIMD level.
#include "cpu/level_includes.h"
#include "relevancy/sab_problem.h"

#include "common/simd_target.h"

#include "relevancy/sab_kernels.h"

namespace rnnkern {

template <class T, SimdLevel>
SabKernels<T> sab_kernels_at() {
  return sab_kernels<T>();
}

template SabKernels<float> sab_kernels_at<float, SimdLevel::RNNKERN_SIMD_LEVEL>();
template SabKernels<double> sab_kernels_at<double, SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
