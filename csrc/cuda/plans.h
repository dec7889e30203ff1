// Shared by launch plans and the operators that return them.
#pragma once

#include <string>
#include <vector>

#include "common/tensor.h"
#include "cuda/facts.h"
#include "cuda/kernel.h"

namespace rnnkern {

// [major, minor, multiprocessors, bytes of shared memory per block, clusters of 8 and of 16 such blocks that can run at
// once] of a CUDA device, as JSON.
std::string device_facts(int64_t index);

namespace cuda {

// The kinds of kernels, by where they keep the weights.
enum class KernelKind { stepwise, block, cluster, grid };

const char* name(KernelKind kind);

// The reason if RNNKERN_CUDA_KERNELS, which is for measurements, excludes this kind; else empty.
std::string kernel_filter(KernelKind kind);

// Calls f(S()), where S is the storage type of `dtype`, or float for float64, which the callers do not support.
template <class F>
auto by_narrow_storage(ScalarType dtype, F f) {
  if (dtype == ScalarType::BFloat16) return f(device::bfloat16());
  if (dtype == ScalarType::Half) return f(device::float16());
  return f(float());
}

// The facts from the numbers of device_facts; the two of clusters are optional.
Facts facts_from(const char* op, const std::vector<int64_t>& numbers);

// The header and type of each kernel, as JSON: [["family/cuda/copy.cuh", "rnnkern::CopyKernel"], ...].
std::string programs_of(const std::vector<const Kernel*>& kernels);

}  // namespace cuda
}  // namespace rnnkern
