// What rnnkern_stub has beside the operators of the CUDA drivers, which are compiled as for a GPU, with the launcher in
// place of the interpreter. Test code gives all operators schemas, those of rnnkern's own, and a driver that needs no
// device. For rnnkern's compiler, an operator of Python's, rnnkern itself must be there.
#include "common/counters.h"
#include "common/tensor.h"
#include "cuda/alone.cuh"
#include "cuda/kernel.h"
#include "cuda/libcuda.h"
#include "cuda/library.h"
#include "cuda/modules.h"
#include "cuda/plan.h"

namespace rnnkern {
namespace {

void enter(int64_t device) { cuda::enter(int(device)); }

void start(int64_t blocks, int64_t shared_bytes, int64_t cluster, bool cooperative) {
  cuda::launch<cuda::AloneKernel>({blocks, shared_bytes, int(cluster), cooperative}, {}, nullptr);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(RNNKERN_LIBRARY, CompositeExplicitAutograd, m) {
  m.impl("enter", TORCH_BOX(&enter));
  m.impl("start", TORCH_BOX(&start));
  m.impl("kernel_counts", TORCH_BOX(&kernel_counts));
  m.impl("device_facts", TORCH_BOX(&device_facts));
  m.impl("load_kernel", TORCH_BOX(&load_kernel));
}

}  // namespace rnnkern
