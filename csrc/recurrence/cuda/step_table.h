// Fills the table of a cell's pointwise kernels.
#pragma once

#include "recurrence/cuda/kernels.h"
#include "recurrence/cuda/step.cuh"
#include "recurrence/cuda/step_normalised.cuh"

namespace rnnkern {

template <class Cell, class S>
constexpr StepTable step_table_of() {
  if constexpr (Cell::normalised) {
    return {{&cuda::kernel<NormalisedStepForwardKernel<Cell, S, false>>,
             &cuda::kernel<NormalisedStepForwardKernel<Cell, S, true>>},
            {&cuda::kernel<NormalisedStepBackwardKernel<Cell, S, false>>,
             &cuda::kernel<NormalisedStepBackwardKernel<Cell, S, true>>}};
  } else {
    return {{&cuda::kernel<StepForwardKernel<Cell, S, false>>, &cuda::kernel<StepForwardKernel<Cell, S, true>>},
            {&cuda::kernel<StepBackwardKernel<Cell, S, false>>, &cuda::kernel<StepBackwardKernel<Cell, S, true>>}};
  }
}

template <class Cell, class S>
inline constexpr StepTable step_table = step_table_of<Cell, S>();

}  // namespace rnnkern
