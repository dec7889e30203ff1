// A stand-in for the device, whose properties tests set by operators that every library of interpreted drivers has.
// Tests define their schemas.
#include "common/counters.h"
#include "common/tensor.h"
#include "cuda/facts.h"
#include "cuda/libcuda.h"
#include "cuda/library.h"
#include "interpreter/primitives.h"

namespace rnnkern::cuda {
namespace {

void set_facts(int64_t major, int64_t minor, int64_t multiprocessors, int64_t shared_bytes, int64_t clusters_of_8,
               int64_t clusters_of_16) {
  device::pretended() = {
      int(major), int(minor), int(multiprocessors), shared_bytes, {int(clusters_of_8), int(clusters_of_16)}};
}

void set_seed_of(int64_t seed) { device::set_seed(uint64_t(seed)); }

int64_t count_bank_conflicts() { return device::bank_conflicts(); }

}  // namespace

Facts facts_of_current(void*) { return device::pretended(); }

bool capturing(void*) { return false; }

void enter(int) {}

STABLE_TORCH_LIBRARY_IMPL(RNNKERN_LIBRARY, CompositeExplicitAutograd, m) {
  m.impl("set_facts", TORCH_BOX(&set_facts));
  m.impl("set_seed", TORCH_BOX(&set_seed_of));
  m.impl("bank_conflicts", TORCH_BOX(&count_bank_conflicts));
  m.impl("kernel_counts", TORCH_BOX(&kernel_counts));
}

}  // namespace rnnkern::cuda
