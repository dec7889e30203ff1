#include "device/launch.h"
#include "relevancy/attend_backward.h"
#include "relevancy/attend_forward.h"
#include "relevancy/cell_step.h"
#include "relevancy/cuda_kernels.h"

namespace rnnkern::relevancy {
namespace {

// One thread per element.
template <class Kernel>
int launch(const typename Kernel::Problem& problem, int64_t elements, void* stream) {
  return device::launch<Kernel>({.blocks = (elements + Kernel::threads - 1) / Kernel::threads}, problem, stream);
}

// One block per sample.
template <class Kernel, class T>
int attend(const typename Kernel::Problem& problem, int64_t samples, void* stream) {
  return device::launch<Kernel>({.blocks = samples, .shared_bytes = Bench<T>::bytes()}, problem, stream);
}

}  // namespace

template <class T>
int AttendKernels<T>::remember(const Remember<T>& problem, void* stream) {
  return launch<RememberKernel<T>>(problem, problem.batch * problem.to.members() * problem.hidden, stream);
}

template <class T>
int AttendKernels<T>::cell_forward(const CellForward<T>& problem, int place, void* stream) {
#define RNNKERN_KERNEL(Cell) &launch<CellForwardKernel<Cell, T>>,
  constexpr int (*kernels[])(const CellForward<T>&, int64_t, void*) = {RNNKERN_RELEVANCY_CELLS(RNNKERN_KERNEL)};
#undef RNNKERN_KERNEL
  return kernels[place](problem, problem.rows * problem.hidden, stream);
}

template <class T>
int AttendKernels<T>::attend_forward(const AttendForward<T>& problem, void* stream) {
  return attend<AttendForwardKernel<T>, T>(problem, problem.rows, stream);
}

template <class T>
int AttendKernels<T>::leave(const Leave<T>& problem, void* stream) {
  const History& history = problem.history;
  return launch<LeaveKernel<T>>(problem, history.rows.batch * history.members() * history.rows.hidden, stream);
}

template <class T>
int AttendKernels<T>::previous(const Previous<T>& problem, void* stream) {
  const Rows& rows = problem.rows;
  return launch<PreviousKernel<T>>(problem, rows.count * rows.batch * rows.hidden, stream);
}

template <class T>
int AttendKernels<T>::attend_backward(const AttendBackward<T>& problem, void* stream) {
  return attend<AttendBackwardKernel<T>, T>(problem, problem.alive, stream);
}

template <class T>
int AttendKernels<T>::cell_backward(const CellBackward<T>& problem, int place, void* stream) {
#define RNNKERN_KERNEL(Cell) &launch<CellBackwardKernel<Cell, T>>,
  constexpr int (*kernels[])(const CellBackward<T>&, int64_t, void*) = {RNNKERN_RELEVANCY_CELLS(RNNKERN_KERNEL)};
#undef RNNKERN_KERNEL
  return kernels[place](problem, problem.alive * problem.rows.hidden, stream);
}

template <class T>
int AttendKernels<T>::add(const Add<T>& problem, void* stream) {
  return launch<AddKernel<T>>(problem, problem.count, stream);
}

template struct AttendKernels<float>;
template struct AttendKernels<double>;

int remember_history(const History& history, void* stream) {
  const int64_t slots = history.relevant_size > 0 ? history.relevant_size : 1;
  return launch<HistoryKernel>(history, history.rows.batch * slots, stream);
}

}  // namespace rnnkern::relevancy
