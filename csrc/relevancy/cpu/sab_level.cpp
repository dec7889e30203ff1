// Sparse attentive backtracking at one SIMD level.
#include "cpu/level_includes.h"
#include "relevancy/cpu/sab_problem.h"

#include "common/simd_target.h"

#include "relevancy/cpu/sab_backward.h"
#include "relevancy/cpu/sab_forward.h"

namespace rnnkern {

template <class T>
template <SimdLevel>
SabKernels<T> SabKernels<T>::at() {
  using Forward = SabForwardSample<T>;
  using Backward = SabBackwardSample<T>;
  return {Packed<T>::size,
          rnnkern::pack<T>,
          {process<Forward>, workspace_size<SabTile<Forward>>},
          {process<Backward>, workspace_size<SabTile<Backward>>}};
}

template SabKernels<float> SabKernels<float>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();
template SabKernels<double> SabKernels<double>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
