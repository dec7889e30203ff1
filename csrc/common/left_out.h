// The CUDA kernels that the environment leaves out, to measure one against another.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>

#include "common/tensor.h"

namespace rnnkern {

// Whether RNNKERN_CUDA_KERNELS lists kernels, and not this one.
inline bool leaves_out(const std::string& kernel) {
  const char* list = std::getenv("RNNKERN_CUDA_KERNELS");
  if (!list) return false;
  bool named = false;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    STD_TORCH_CHECK(name == "block" || name == "cluster" || name == "grid" || name == "stepwise",
                    "RNNKERN_CUDA_KERNELS must be a list of block, cluster, grid and stepwise, got '", list, "'");
    named = named || name == kernel;
  }
  return !named;
}

inline std::string left_out(const std::string& kernel) {
  return "RNNKERN_CUDA_KERNELS leaves out the " + kernel + " kernel";
}

}  // namespace rnnkern
