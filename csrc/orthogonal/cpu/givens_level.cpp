// Layers of Givens rotations at one SIMD level.
#include "cpu/level_includes.h"
#include "orthogonal/cpu/givens_problem.h"

#include "common/simd_target.h"

#include "orthogonal/cpu/givens_kernels.h"
#include "orthogonal/cpu/givens_recurrence_backward.h"
#include "orthogonal/cpu/givens_recurrence_forward.h"

namespace rnnkern {

template <class T>
template <SimdLevel>
GivensKernels<T> GivensKernels<T>::at() {
  return {{givens_forward<T>, room_of<GivensForwardWorkspace<T>>},
          {givens_backward<T>, room_of<GivensBackwardWorkspace<T>>},
          {givens_recurrence_forward<T>, room_of<GivensRecurrenceForwardWorkspace<T>>},
          {givens_recurrence_backward<T>, room_of<GivensRecurrenceBackwardWorkspace<T>>}};
}

template GivensKernels<float> GivensKernels<float>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();
template GivensKernels<double> GivensKernels<double>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
