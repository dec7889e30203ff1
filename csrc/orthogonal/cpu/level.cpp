// Orthogonal weights and their backwards at one SIMD level.
#include "cpu/level_includes.h"
#include "orthogonal/cpu/problem.h"

#include "common/simd_target.h"

#include "orthogonal/cpu/schur.h"
#include "orthogonal/cpu/sweep.h"

namespace rnnkern {

template <class T>
template <SimdLevel>
OrthogonalKernels<T> OrthogonalKernels<T>::at() {
  return {{forward<T>, room_of<ForwardWorkspace<T>>},
          {backward<T>, room_of<BackwardWorkspace<T>>},
          {rnnkern::schur_forward<T>, room_of<SchurForwardWorkspace<T>>},
          {rnnkern::schur_backward<T>, room_of<SchurBackwardWorkspace<T>>}};
}

template OrthogonalKernels<float> OrthogonalKernels<float>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();
template OrthogonalKernels<double> OrthogonalKernels<double>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
