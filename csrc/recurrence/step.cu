#include "recurrence/step_normalised.h"
#include "recurrence/step_projected.h"

#include "recurrence/cuda_kernels.h"

namespace rnnkern {
namespace {

template <class Kernel>
int launch(const typename Kernel::Problem& problem, int64_t elements, void* stream) {
  return device::launch<Kernel>({.blocks = (elements + step_threads - 1) / step_threads}, problem, stream);
}

template <class Kernel>
int launch_rows(const typename Kernel::Problem& problem, int64_t rows, void* stream) {
  constexpr int64_t shared = 2 * norm_warps * int64_t(sizeof(typename Kernel::A));
  return device::launch<Kernel>({.blocks = rows, .shared_bytes = shared}, problem, stream);
}

template <class Cell, class S, bool noisy>
int launch_forward(const StepForward<S>& problem, void* stream) {
  if constexpr (Cell::normalised)
    return launch_rows<NormalisedStepForwardKernel<Cell, S, noisy>>(problem, problem.rows, stream);
  else
    return launch<StepForwardKernel<Cell, S, noisy>>(problem, problem.rows * problem.hidden, stream);
}

template <class Cell, class S, bool noisy>
int launch_backward(const StepBackward<S>& problem, void* stream) {
  if constexpr (Cell::normalised)
    return launch_rows<NormalisedStepBackwardKernel<Cell, S, noisy>>(problem, problem.threads, stream);
  else
    return launch<StepBackwardKernel<Cell, S, noisy>>(problem, problem.threads * problem.sequence.hidden, stream);
}

}  // namespace

template <class S>
int StepKernels<S>::forward(const StepForward<S>& problem, int place, void* stream) {
#define RNNKERN_KERNEL(Cell) {&launch_forward<Cell, S, false>, &launch_forward<Cell, S, true>},
  constexpr int (*kernels[][2])(const StepForward<S>&, void*) = {RNNKERN_ALL_CELLS(RNNKERN_KERNEL)};
#undef RNNKERN_KERNEL
  return kernels[place][problem.noise.any()](problem, stream);
}

template <class S>
int StepKernels<S>::backward(const StepBackward<S>& problem, int place, void* stream) {
#define RNNKERN_KERNEL(Cell) {&launch_backward<Cell, S, false>, &launch_backward<Cell, S, true>},
  constexpr int (*kernels[][2])(const StepBackward<S>&, void*) = {RNNKERN_ALL_CELLS(RNNKERN_KERNEL)};
#undef RNNKERN_KERNEL
  return kernels[place][problem.noise.any()](problem, stream);
}

template <class S>
int StepKernels<S>::projected(const StepProjected<S>& problem, void* stream) {
  const auto kernel =
      problem.noise.any() ? &launch<StepProjectedKernel<S, true>> : &launch<StepProjectedKernel<S, false>>;
  return kernel(problem, problem.rows * problem.width, stream);
}

template <class S>
int StepKernels<S>::projected_backward(const StepBackward<S>& problem, void* stream) {
  const auto kernel = problem.noise.any() ? &launch<StepProjectedBackwardKernel<S, true>>
                                          : &launch<StepProjectedBackwardKernel<S, false>>;
  return kernel(problem, problem.threads * problem.sequence.hidden, stream);
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
