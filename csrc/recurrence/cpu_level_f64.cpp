// The kernels at one SIMD level for one storage type: the files of the other types balance the build.
#include "recurrence/cpu_includes.h"

#include "common/simd_target.h"

#include "recurrence/cpu_kernels.h"

namespace rnnkern {

template <class S, SimdLevel>
Kernels<S> kernels_at() {
  return kernels<S>();
}

template Kernels<double> kernels_at<double, SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
