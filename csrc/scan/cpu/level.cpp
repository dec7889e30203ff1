// Linear scans and moment filters at one SIMD level.
#include "cpu/level_includes.h"
#include "scan/cpu/problem.h"

#include "common/simd_target.h"

#include "scan/cpu/backward.h"
#include "scan/cpu/forward.h"
#include "scan/cpu/moments.h"

namespace rnnkern {

template <class T>
template <SimdLevel>
ScanKernels<T> ScanKernels<T>::at() {
  return {scan_forward<T>, scan_backward<T>, rnnkern::moments_forward<T>, rnnkern::moments_backward<T>};
}

template ScanKernels<float> ScanKernels<float>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();
template ScanKernels<double> ScanKernels<double>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
