// The relevancy recurrence's CUDA drivers and kernels on the interpreter, as operators of rnnkern_interpret_relevancy
// for CPU tensors: test code gives them the schemas of rnnkern's own.
#include "relevancy/relevancy.h"
#include "common/counters.h"
#include "device/facts.h"
#include "interpreter/primitives.h"

namespace rnnkern {
namespace device {
namespace {

Facts pretended{9, 0, 1, 227 * 1024, {}};

void set_facts(int64_t major, int64_t minor, int64_t multiprocessors, int64_t shared_bytes, int64_t clusters_of_8,
               int64_t clusters_of_16) {
  pretended = {int(major), int(minor), int(multiprocessors), shared_bytes, {int(clusters_of_8), int(clusters_of_16)}};
}

void set_seed_of(int64_t seed) { set_seed(uint64_t(seed)); }

}  // namespace

int facts_of(int, Facts& facts) {
  facts = pretended;
  return 0;
}

const char* error_name(int) { return "none"; }

}  // namespace device

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_relevancy, CompositeExplicitAutograd, m) {
  m.impl("set_facts", TORCH_BOX(&device::set_facts));
  m.impl("set_seed", TORCH_BOX(&device::set_seed_of));
  m.impl("kernel_counts", TORCH_BOX(&kernel_counts));
  m.impl("relevancy_plan", TORCH_BOX(&relevancy_plan));
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern_interpret_relevancy, CPU, m) {
  m.impl("relevancy_recurrence", TORCH_BOX(&relevancy_recurrence_cuda));
  m.impl("relevancy_recurrence_backward", TORCH_BOX(&relevancy_recurrence_backward_cuda));
}

}  // namespace rnnkern
