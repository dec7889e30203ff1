// Layers of Givens rotations at one SIMD level.
#include "cpu/level_includes.h"
#include "orthogonal/cpu/givens_problem.h"

#include "common/simd_target.h"

#include "orthogonal/cpu/givens_product.h"
#include "orthogonal/cpu/givens_recurrence_backward.h"
#include "orthogonal/cpu/givens_recurrence_forward.h"

namespace rnnkern {

template <class T>
template <SimdLevel>
GivensKernels<T> GivensKernels<T>::at() {
  return {{givens_forward<T>, workspace_size<GivensForwardWorkspace<T>>},
          {givens_backward<T>, workspace_size<GivensBackwardWorkspace<T>>},
          {givens_recurrence_forward<T>, workspace_size<GivensRecurrenceForwardWorkspace<T>>},
          {givens_recurrence_backward<T>, workspace_size<GivensRecurrenceBackwardWorkspace<T>>}};
}

template GivensKernels<float> GivensKernels<float>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();
template GivensKernels<double> GivensKernels<double>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
