// The CUDA driver and kernels of the recurrence with layers of Givens rotations on the interpreter, as operators of
// rnnkern_interpret_givens for CPU tensors. Tests define their schemas, which are those of rnnkern.
#include "orthogonal/givens.h"

#include "common/counters.h"
#include "interpreter/stub.h"

namespace rnnkern {

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_givens, CompositeExplicitAutograd, m) {
  m.impl("set_facts", TORCH_BOX(&cuda::set_facts));
  m.impl("set_seed", TORCH_BOX(&cuda::set_seed_of));
  m.impl("set_capturing", TORCH_BOX(&cuda::set_capturing));
  m.impl("bank_conflicts", TORCH_BOX(&cuda::count_bank_conflicts));
  m.impl("kernel_counts", TORCH_BOX(&kernel_counts));
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_givens, CPU, m) {
  m.impl("givens_recurrence", TORCH_BOX(&givens_recurrence_cuda));
  m.impl("givens_recurrence_backward", TORCH_BOX(&givens_recurrence_backward_cuda));
}

}  // namespace rnnkern
