#include "recurrence/cuda/step_kernels.h"

#include "recurrence/cuda/step_projected.cuh"
#include "recurrence/cuda/step_table.h"

namespace rnnkern {

template <class S>
const StepTable& BuiltInSteps<S>::steps(int cell_id) {
  return *visit_cell(cell_id, []<class Cell>(CellType<Cell>) { return &step_table<Cell, S>; });
}

template <class S>
std::vector<const cuda::Kernel*> step_kernels(const CellKernels& kernels, const CellNumbers& cell, bool noisy) {
  using A = Arithmetic<S>;
  const StepTable& table = kernels.steps<S>();
  std::vector<const cuda::Kernel*> all{table.forward[noisy], table.backward[noisy], &cuda::kernel<PreviousKernel<S, S>>,
                                       &cuda::kernel<AccumulateKernel<S>>};
  const auto add = [&](const cuda::Kernel& kernel) { all.push_back(&kernel); };
  if (!std::is_same_v<S, A>) add(cuda::kernel<AccumulateKernel<A>>);
  if (!std::is_same_v<S, A> && kernels.compiled && cell.states > 1) add(cuda::kernel<PreviousKernel<S, A>>);
  if (noisy) {
    add(*table.forward[false]);  // recomputes the gates in the backward
    add(cuda::kernel<MaskKernel<S>>);
    add(cuda::kernel<DropKernel<S>>);
  }
  if (cell.projected) {
    add(noisy ? cuda::kernel<StepProjectedKernel<S, true>> : cuda::kernel<StepProjectedKernel<S, false>>);
    add(noisy ? cuda::kernel<StepProjectedBackwardKernel<S, true>>
              : cuda::kernel<StepProjectedBackwardKernel<S, false>>);
  }
  return all;
}

#define RNNKERN_STEPS_OF(S)        \
  template struct BuiltInSteps<S>; \
  template std::vector<const cuda::Kernel*> step_kernels<S>(const CellKernels&, const CellNumbers&, bool);
RNNKERN_STEPS_OF(float)
RNNKERN_STEPS_OF(double)
RNNKERN_STEPS_OF(device::bfloat16)
RNNKERN_STEPS_OF(device::float16)
#undef RNNKERN_STEPS_OF

}  // namespace rnnkern
