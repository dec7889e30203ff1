#include "relevancy/cells.h"
#include "relevancy/cuda/kernels.h"
#include "relevancy/cuda/stepwise_attention_backward.cuh"
#include "relevancy/cuda/stepwise_attention_forward.cuh"
#include "relevancy/cuda/stepwise_cell.cuh"

namespace rnnkern::relevancy {
namespace {

template <class T>
const cuda::Kernel& forward_kernel(int cell_id) {
  return *visit_cell(cell_id, []<class Cell>(CellType<Cell>) { return &cuda::kernel<CellForwardKernel<Cell, T>>; });
}

template <class T>
const cuda::Kernel& backward_kernel(int cell_id) {
  return *visit_cell(cell_id, []<class Cell>(CellType<Cell>) { return &cuda::kernel<CellBackwardKernel<Cell, T>>; });
}

// A thread for each unit of `rows` rows.
cuda::Launch shape(int64_t rows, int64_t hidden) { return {(rows * hidden + step_threads - 1) / step_threads}; }

}  // namespace

template <class T>
void CellKernels<T>::start(int cell_id, const CellForward<T>& problem, void* stream) {
  cuda::start(forward_kernel<T>(cell_id), shape(problem.rows, problem.hidden), &problem, stream);
}

template <class T>
void CellKernels<T>::start(int cell_id, const CellBackward<T>& problem, void* stream) {
  cuda::start(backward_kernel<T>(cell_id), shape(problem.alive, problem.rows.hidden), &problem, stream);
}

template <class T>
std::vector<const cuda::Kernel*> CellKernels<T>::all(int cell_id) {
  return {&forward_kernel<T>(cell_id),
          &backward_kernel<T>(cell_id),
          &cuda::kernel<RememberKernel<T>>,
          &cuda::kernel<StepwiseAttentionForwardKernel<T>>,
          &cuda::kernel<StepwiseAttentionBackwardKernel<T>>,
          &cuda::kernel<LeaveKernel<T>>,
          &cuda::kernel<PreviousKernel<T>>,
          &cuda::kernel<AddKernel<T>>,
          &cuda::kernel<HistoryKernel>};
}

template struct CellKernels<float>;
template struct CellKernels<double>;

}  // namespace rnnkern::relevancy
