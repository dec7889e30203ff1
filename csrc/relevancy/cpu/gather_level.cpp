// gather_attention at one SIMD level.
#include "cpu/level_includes.h"
#include "relevancy/cpu/gather_problem.h"

#include "common/simd_target.h"

#include "relevancy/cpu/gather_backward.h"
#include "relevancy/cpu/gather_forward.h"

namespace rnnkern {

template <class T>
template <SimdLevel>
GatherKernels<T> GatherKernels<T>::at() {
  return {{gather_forward<T>, workspace_size<GatherForwardWorkspace<T>>},
          {gather_backward<T>, workspace_size<GatherBackwardWorkspace<T>>}};
}

template GatherKernels<float> GatherKernels<float>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();
template GatherKernels<double> GatherKernels<double>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
