#include "recurrence/step.h"

#include "recurrence/cuda_kernels.h"

namespace rnnkern {
namespace {

template <class Kernel>
int launch(const typename Kernel::Problem& problem, int64_t elements, void* stream) {
  return device::launch<Kernel>({.blocks = (elements + step_threads - 1) / step_threads}, problem, stream);
}

}  // namespace

template <class S>
int StepKernels<S>::forward(const StepForward<S>& problem, int place, void* stream) {
#define RNNKERN_KERNEL(Cell) {&launch<StepForwardKernel<Cell, S, false>>, &launch<StepForwardKernel<Cell, S, true>>},
  constexpr int (*kernels[][2])(const StepForward<S>&, int64_t, void*) = {RNNKERN_CUDA_CELLS(RNNKERN_KERNEL)};
#undef RNNKERN_KERNEL
  return kernels[place][problem.noise.any()](problem, problem.rows * problem.hidden, stream);
}

template <class S>
int StepKernels<S>::backward(const StepBackward<S>& problem, int place, void* stream) {
#define RNNKERN_KERNEL(Cell) {&launch<StepBackwardKernel<Cell, S, false>>, &launch<StepBackwardKernel<Cell, S, true>>},
  constexpr int (*kernels[][2])(const StepBackward<S>&, int64_t, void*) = {RNNKERN_CUDA_CELLS(RNNKERN_KERNEL)};
#undef RNNKERN_KERNEL
  return kernels[place][problem.noise.any()](problem, problem.threads * problem.sequence.hidden, stream);
}

template <class S>
int StepKernels<S>::previous(const Previous<S>& problem, void* stream) {
  return launch<PreviousKernel<S>>(problem, problem.rows * problem.sequence.hidden, stream);
}

template <class S>
int StepKernels<S>::mask(const Mask<S>& problem, void* stream) {
  return launch<MaskKernel<S>>(problem, problem.batch * problem.hidden, stream);
}

template <class S>
int StepKernels<S>::drop(const Drop<S>& problem, void* stream) {
  return launch<DropKernel<S>>(problem, problem.rows * problem.sequence.hidden, stream);
}

template <class S>
int StepKernels<S>::accumulate(const Accumulate<S>& problem, void* stream) {
  return launch<AccumulateKernel<S>>(problem, problem.count, stream);
}

template struct StepKernels<float>;
template struct StepKernels<double>;
template struct StepKernels<device::bfloat16>;
template struct StepKernels<device::float16>;

}  // namespace rnnkern
