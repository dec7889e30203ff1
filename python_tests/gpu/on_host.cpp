// The CUDA drivers as a GPU has them, with the launcher in place of the interpreter, as operators of rnnkern_stub for
// CPU tensors: test code gives them the schemas of rnnkern's own, and a driver that needs no device. For rnnkern's
// compiler, an operator of Python's, rnnkern itself must be there.
#include "common/counters.h"
#include "common/tensor.h"
#include "cuda/alone.cuh"
#include "cuda/libcuda.h"
#include "cuda/kernel.h"
#include "cuda/modules.h"
#include "cuda/plan.h"
#include "orthogonal/givens.h"
#include "recurrence/recurrence.h"
#include "relevancy/relevancy.h"

namespace rnnkern {
namespace {

void enter(int64_t device) { cuda::enter(int(device)); }

void start(int64_t blocks, int64_t shared_bytes, int64_t cluster, bool cooperative) {
  cuda::launch<cuda::AloneKernel>({blocks, shared_bytes, int(cluster), cooperative}, {}, nullptr);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern_stub, CompositeExplicitAutograd, m) {
  m.impl("enter", TORCH_BOX(&enter));
  m.impl("start", TORCH_BOX(&start));
  m.impl("kernel_counts", TORCH_BOX(&kernel_counts));
  m.impl("device_facts", TORCH_BOX(&device_facts));
  m.impl("load_kernel", TORCH_BOX(&load_kernel));
  m.impl("recurrence_plan", TORCH_BOX(&recurrence_plan));
  m.impl("relevancy_plan", TORCH_BOX(&relevancy_plan));
  m.impl("givens_programs", TORCH_BOX(&givens_programs));
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern_stub, CPU, m) {
  m.impl("recurrence", TORCH_BOX(&recurrence_cuda));
  m.impl("recurrence_backward", TORCH_BOX(&recurrence_backward_cuda));
  m.impl("relevancy_recurrence", TORCH_BOX(&relevancy_recurrence_cuda));
  m.impl("relevancy_recurrence_backward", TORCH_BOX(&relevancy_recurrence_backward_cuda));
  m.impl("givens_recurrence", TORCH_BOX(&givens_recurrence_cuda));
  m.impl("givens_recurrence_backward", TORCH_BOX(&givens_recurrence_backward_cuda));
}

}  // namespace rnnkern
