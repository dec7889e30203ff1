// The CUDA driver and kernels of the recurrence with layers of Givens rotations on the interpreter, as operators of
// rnnkern_interpret_givens for CPU tensors. Tests define their schemas, which are those of rnnkern.
#include "orthogonal/givens.h"

#include "interpreter/stand_in.h"

namespace rnnkern {

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_givens, CompositeExplicitAutograd, m) { cuda::implement_stand_in(m); }

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_givens, CPU, m) {
  m.impl("givens_recurrence", TORCH_BOX(&givens_recurrence_cuda));
  m.impl("givens_recurrence_backward", TORCH_BOX(&givens_recurrence_backward_cuda));
}

}  // namespace rnnkern
