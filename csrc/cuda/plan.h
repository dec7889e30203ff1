// Launch plans, which all families share, and what the operators that return them need.
#pragma once

#include <string>
#include <vector>

#include "common/tensor.h"
#include "cuda/facts.h"
#include "cuda/kernels.h"

namespace rnnkern {

// [major, minor, multiprocessors, bytes of shared memory per block, clusters of 8 and of 16 such blocks that can run at
// once] of a CUDA device, as JSON.
std::string device_facts(int64_t index);

namespace cuda {

// The kernels of a call.
struct Plan {
  KernelKind kind = KernelKind::stepwise;
  std::string reason;
  Residents kernels{};      // of this kind; null in a direction that is stepwise
  bool tf32 = false;        // float32 weights are multiplied in TF32
  int64_t chunk_steps = 0;  // steps of a chunk, in a backward that works in chunks

  bool stepwise() const { return kind == KernelKind::stepwise; }
  const char* name() const { return tf32 ? "cluster_tf32" : kernel_kinds[int(kind)]; }
  const char* name_of_backward() const { return kernels.backward.kernel ? name() : kernel_kinds[0]; }
};

// Texts and numbers, one after the other.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::string all;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part)>>)
      all += std::to_string(part);
    else
      all += part;
  };
  (add(parts), ...);
  return all;
}

// A stepwise plan, with the reason why the kernels of another kind cannot run the call.
template <class... Parts>
Plan refused(const Parts&... reason) {
  return {.reason = text(reason...)};
}

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
