// The kinds of CUDA kernels, by where they keep the weights.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>

#include "common/tensor.h"
#include "device/types.h"

namespace rnnkern::cuda {

enum class KernelKind { stepwise, block, cluster, grid };

inline const char* name(KernelKind kind) {
  constexpr const char* names[] = {"stepwise", "block", "cluster", "grid"};
  return names[int(kind)];
}

// The reason if RNNKERN_CUDA_KERNELS, which is for measurements, excludes this kind; else empty.
inline std::string kernel_filter(KernelKind kind) {
  const char* list = std::getenv("RNNKERN_CUDA_KERNELS");
  if (!list) return "";
  bool named = false;
  std::istringstream names(list);
  for (std::string word; std::getline(names, word, ',');) {
    STD_TORCH_CHECK(word == "block" || word == "cluster" || word == "grid" || word == "stepwise",
                    "RNNKERN_CUDA_KERNELS must be a list of block, cluster, grid and stepwise, got '", list, "'");
    named = named || word == name(kind);
  }
  return named ? "" : std::string("RNNKERN_CUDA_KERNELS leaves out the ") + name(kind) + " kernel";
}

// Calls f(S()), where S is the storage type of `dtype`, or float for float64, which the callers do not support.
template <class F>
auto by_narrow_storage(ScalarType dtype, F f) {
  if (dtype == ScalarType::BFloat16) return f(device::bfloat16());
  if (dtype == ScalarType::Half) return f(device::float16());
  return f(float());
}

}  // namespace rnnkern::cuda
