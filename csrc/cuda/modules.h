// Kernels that are loaded on a device.
#pragma once

#include "cuda/kernel.h"

namespace rnnkern::cuda {

// The driver's handle of a kernel in the current context: compiled, or read from the cache, when first asked for, which
// takes up to two seconds. Raises while a CUDA graph records the stream: loading is none of its nodes.
void* function_of(const Kernel& kernel, void* stream);

}  // namespace rnnkern::cuda
