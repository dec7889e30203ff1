// The relevancy recurrence's CUDA drivers and kernels on the interpreter, as operators of rnnkern_interpret_relevancy
// for CPU tensors: test code gives them the schemas of rnnkern's own.
#include "common/counters.h"
#include "device/facts.h"
#include "interpreter/primitives.h"
#include "relevancy/cuda_operators.h"

namespace rnnkern {
namespace device {
namespace {

void set_seed_of(int64_t seed) { set_seed(uint64_t(seed)); }

}  // namespace

const char* error_name(int) { return "none"; }

}  // namespace device

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_relevancy, CompositeExplicitAutograd, m) {
  m.impl("set_seed", TORCH_BOX(&device::set_seed_of));
  m.impl("kernel_counts", TORCH_BOX(&kernel_counts));
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_relevancy, CPU, m) {
  m.impl("relevancy_recurrence", TORCH_BOX(&relevancy_recurrence_cuda));
  m.impl("relevancy_recurrence_backward", TORCH_BOX(&relevancy_recurrence_backward_cuda));
}

}  // namespace rnnkern
