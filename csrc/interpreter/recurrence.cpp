// The recurrence's CUDA drivers and kernels on the interpreter, as operators of rnnkern_interpret_recurrence for CPU
// tensors. Tests define their schemas, which are those of rnnkern.
#include "recurrence/recurrence.h"
#include "common/tensor.h"
#include "interpreter/stand_in.h"

namespace rnnkern {

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_recurrence, CompositeExplicitAutograd, m) {
  cuda::implement_stand_in(m);
  m.impl("recurrence_plan", TORCH_BOX(&recurrence_plan));
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_recurrence, CPU, m) {
  m.impl("recurrence", TORCH_BOX(&recurrence_cuda));
  m.impl("recurrence_backward", TORCH_BOX(&recurrence_backward_cuda));
}

}  // namespace rnnkern
