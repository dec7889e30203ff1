// Kernels that are loaded on a device.
#pragma once

#include <string>

#include "cuda/kernel.h"

namespace rnnkern::cuda {

// The driver's handle of a kernel in the current context: compiled, or read from the cache, when first asked for, which
// takes up to two seconds. Raises while a CUDA graph records the stream: loading is none of its nodes.
void* function_of(const Kernel& kernel, void* stream);

}  // namespace rnnkern::cuda

namespace rnnkern {

// Loads a kernel on a CUDA device ahead of its first call, by header and type.
void load_kernel(std::string header, std::string type, int64_t device);

}  // namespace rnnkern
