// The relevancy recurrence's CUDA drivers and kernels on the interpreter, as operators of rnnkern_interpret_relevancy
// for CPU tensors. Tests define their schemas, which are those of rnnkern.
#include "relevancy/relevancy.h"
#include "common/counters.h"
#include "interpreter/stub.h"

namespace rnnkern {

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_relevancy, CompositeExplicitAutograd, m) {
  m.impl("set_facts", TORCH_BOX(&cuda::set_facts));
  m.impl("set_seed", TORCH_BOX(&cuda::set_seed_of));
  m.impl("set_capturing", TORCH_BOX(&cuda::set_capturing));
  m.impl("bank_conflicts", TORCH_BOX(&cuda::count_bank_conflicts));
  m.impl("kernel_counts", TORCH_BOX(&kernel_counts));
  m.impl("relevancy_plan", TORCH_BOX(&relevancy_plan));
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_relevancy, CPU, m) {
  m.impl("relevancy_recurrence", TORCH_BOX(&relevancy_recurrence_cuda));
  m.impl("relevancy_recurrence_backward", TORCH_BOX(&relevancy_recurrence_backward_cuda));
}

}  // namespace rnnkern
