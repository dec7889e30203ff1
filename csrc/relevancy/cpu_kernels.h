// The relevancy recurrence and its backward for one SIMD level. Included once per level file, which says the vector's
// width.
#pragma once

#include "relevancy/cells.h"
#include "relevancy/cpu_backward.h"
#include "relevancy/cpu_forward.h"
#include "relevancy/problem.h"

namespace rnnkern {
namespace {

template <class T>
RelevancyKernels<T> relevancy_kernels() {
#define RNNKERN_FORWARD(Cell) {forward<T, Cell>, forward_room<T, Cell>},
#define RNNKERN_BACKWARD(Cell) {backward<T, Cell>, backward_room<T, Cell>},
  static constexpr RelevancyKernel<RelevancyForward<T>> of_forward[] = {RNNKERN_RELEVANCY_CELLS(RNNKERN_FORWARD)};
  static constexpr RelevancyKernel<RelevancyBackward<T>> of_backward[] = {RNNKERN_RELEVANCY_CELLS(RNNKERN_BACKWARD)};
  return {of_forward, of_backward};
}

}  // namespace
}  // namespace rnnkern
