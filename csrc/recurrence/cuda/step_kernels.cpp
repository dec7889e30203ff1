#include "recurrence/cuda/step_kernels.h"

#include "recurrence/cuda/step_normalised.cuh"
#include "recurrence/cuda/step_projected.cuh"

namespace rnnkern {
namespace {

template <class S>
const cuda::Kernel& forward_kernel(int place, bool noisy) {
  return *visit_cell(place, [&]<class Cell>(CellType<Cell>) {
    if constexpr (Cell::normalised)
      return noisy ? &cuda::kernel<NormalisedStepForwardKernel<Cell, S, true>>
                   : &cuda::kernel<NormalisedStepForwardKernel<Cell, S, false>>;
    else
      return noisy ? &cuda::kernel<StepForwardKernel<Cell, S, true>> : &cuda::kernel<StepForwardKernel<Cell, S, false>>;
  });
}

template <class S>
const cuda::Kernel& backward_kernel(int place, bool noisy) {
  return *visit_cell(place, [&]<class Cell>(CellType<Cell>) {
    if constexpr (Cell::normalised)
      return noisy ? &cuda::kernel<NormalisedStepBackwardKernel<Cell, S, true>>
                   : &cuda::kernel<NormalisedStepBackwardKernel<Cell, S, false>>;
    else
      return noisy ? &cuda::kernel<StepBackwardKernel<Cell, S, true>>
                   : &cuda::kernel<StepBackwardKernel<Cell, S, false>>;
  });
}

// A thread for each unit of so many rows, or where R h is normalised a block for each row.
template <class S>
cuda::Launch shape(int place, int64_t rows, int64_t hidden) {
  if (cell_list[place].normalised) return {rows, 2 * norm_warps * int64_t(sizeof(Arithmetic<S>))};
  return {(rows * hidden + step_threads - 1) / step_threads};
}

}  // namespace

template <class S>
void StepKernels<S>::start(int place, const StepForward<S>& problem, void* stream) {
  const cuda::Launch launch = shape<S>(place, problem.rows, problem.hidden);
  cuda::start(forward_kernel<S>(place, problem.noise.any()), launch, &problem, stream);
}

template <class S>
void StepKernels<S>::start(int place, const StepBackward<S>& problem, void* stream) {
  const cuda::Launch launch = shape<S>(place, problem.threads, problem.sequence.hidden);
  cuda::start(backward_kernel<S>(place, problem.noise.any()), launch, &problem, stream);
}

template <class S>
std::vector<const cuda::Kernel*> StepKernels<S>::all(int place, bool noisy) {
  using A = Arithmetic<S>;
  std::vector<const cuda::Kernel*> kernels{&forward_kernel<S>(place, noisy), &backward_kernel<S>(place, noisy),
                                           &cuda::kernel<PreviousKernel<S>>, &cuda::kernel<AccumulateKernel<S>>};
  const auto add = [&](const cuda::Kernel& kernel) { kernels.push_back(&kernel); };
  if (!std::is_same_v<S, A>) add(cuda::kernel<AccumulateKernel<A>>);
  if (noisy) {
    add(forward_kernel<S>(place, false));  // the backward computes gates again without
    add(cuda::kernel<MaskKernel<S>>);
    add(cuda::kernel<DropKernel<S>>);
  }
  if (cell_list[place].projected) {
    add(noisy ? cuda::kernel<StepProjectedKernel<S, true>> : cuda::kernel<StepProjectedKernel<S, false>>);
    add(noisy ? cuda::kernel<StepProjectedBackwardKernel<S, true>>
              : cuda::kernel<StepProjectedBackwardKernel<S, false>>);
  }
  return kernels;
}

template struct StepKernels<float>;
template struct StepKernels<double>;
template struct StepKernels<device::bfloat16>;
template struct StepKernels<device::float16>;

}  // namespace rnnkern
