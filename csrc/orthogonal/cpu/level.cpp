// Orthogonal weights and their backwards at one SIMD level.
#include "cpu/level_includes.h"
#include "orthogonal/cpu/problem.h"

#include "common/simd_target.h"

#include "orthogonal/cpu/backward.h"
#include "orthogonal/cpu/forward.h"
#include "orthogonal/cpu/schur.h"

namespace rnnkern {

template <class T>
template <SimdLevel>
OrthogonalKernels<T> OrthogonalKernels<T>::at() {
  return {{forward<T>, workspace_size<ForwardWorkspace<T>>},
          {backward<T>, workspace_size<BackwardWorkspace<T>>},
          {rnnkern::schur_forward<T>, workspace_size<SchurForwardWorkspace<T>>},
          {rnnkern::schur_backward<T>, workspace_size<SchurBackwardWorkspace<T>>}};
}

template OrthogonalKernels<float> OrthogonalKernels<float>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();
template OrthogonalKernels<double> OrthogonalKernels<double>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
