// The recurrence's CUDA drivers and kernels on the interpreter, as operators of rnnkern_interpret_recurrence for CPU
// tensors. Tests define their schemas, which are those of rnnkern.
#include "recurrence/recurrence.h"
#include "common/counters.h"
#include "common/tensor.h"
#include "interpreter/stub.h"

namespace rnnkern {

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_recurrence, CompositeExplicitAutograd, m) {
  m.impl("set_facts", TORCH_BOX(&cuda::set_facts));
  m.impl("set_seed", TORCH_BOX(&cuda::set_seed_of));
  m.impl("set_capturing", TORCH_BOX(&cuda::set_capturing));
  m.impl("bank_conflicts", TORCH_BOX(&cuda::count_bank_conflicts));
  m.impl("kernel_counts", TORCH_BOX(&kernel_counts));
  m.impl("recurrence_plan", TORCH_BOX(&recurrence_plan));
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_recurrence, CPU, m) {
  m.impl("recurrence", TORCH_BOX(&recurrence_cuda));
  m.impl("recurrence_backward", TORCH_BOX(&recurrence_backward_cuda));
}

}  // namespace rnnkern
