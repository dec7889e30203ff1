// The relevancy recurrence's CUDA drivers and kernels on the interpreter, as operators of rnnkern_interpret_relevancy
// for CPU tensors. Tests define their schemas, which are those of rnnkern.
#include "relevancy/relevancy.h"
#include "interpreter/stand_in.h"

namespace rnnkern {

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_relevancy, CompositeExplicitAutograd, m) {
  cuda::implement_stand_in(m);
  m.impl("relevancy_plan", TORCH_BOX(&relevancy_plan));
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_relevancy, CPU, m) {
  m.impl("relevancy_recurrence", TORCH_BOX(&relevancy_recurrence_cuda));
  m.impl("relevancy_recurrence_backward", TORCH_BOX(&relevancy_recurrence_backward_cuda));
}

}  // namespace rnnkern
