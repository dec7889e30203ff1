// Kernels that are loaded on a device.
#pragma once

#include <string>

#include "cuda/kernel.h"

namespace rnnkern::cuda {

// The driver's handle of a kernel in the current context. The first call compiles the kernel, or reads it from the
// cache, which takes up to two seconds. Raises during the capture of a CUDA graph, because loading cannot be captured.
void* function_of(const Kernel& kernel, void* stream);

}  // namespace rnnkern::cuda

namespace rnnkern {

// Loads a kernel, given by header and type, on a CUDA device before its first call.
void load_kernel(std::string header, std::string type, int64_t device);

}  // namespace rnnkern
