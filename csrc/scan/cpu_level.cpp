// The kernels at one SIMD level.
#include "cpu/level_includes.h"
#include "scan/problem.h"

#include "common/simd_target.h"

#include "scan/cpu_kernels.h"

namespace rnnkern {

template <class T, SimdLevel>
ScanKernels<T> scan_kernels_at() {
  return scan_kernels<T>();
}

template ScanKernels<float> scan_kernels_at<float, SimdLevel::RNNKERN_SIMD_LEVEL>();
template ScanKernels<double> scan_kernels_at<double, SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
