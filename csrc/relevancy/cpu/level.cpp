// The relevancy recurrence and its backward at one SIMD level.
#include "cpu/level_includes.h"
#include "relevancy/cpu/problem.h"

#include "common/simd_target.h"

#include "relevancy/cells.h"
#include "relevancy/cpu/backward.h"
#include "relevancy/cpu/forward.h"

namespace rnnkern {

template <class T>
template <SimdLevel>
RelevancyKernels<T> RelevancyKernels<T>::at() {
#define RNNKERN_FORWARD(Cell) {rnnkern::forward<T, Cell>, workspace_size<ForwardWorkspace<T, Cell>>},
#define RNNKERN_BACKWARD(Cell) {rnnkern::backward<T, Cell>, workspace_size<BackwardWorkspace<T, Cell>>},
  static constexpr Kernel<RelevancyForward<T>> of_forward[] = {RNNKERN_RELEVANCY_CELLS(RNNKERN_FORWARD)};
  static constexpr Kernel<RelevancyBackward<T>> of_backward[] = {RNNKERN_RELEVANCY_CELLS(RNNKERN_BACKWARD)};
  return {of_forward, of_backward};
}

template RelevancyKernels<float> RelevancyKernels<float>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();
template RelevancyKernels<double> RelevancyKernels<double>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
