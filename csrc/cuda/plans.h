// Shared by the operators that return launch plans.
#pragma once

#include <string>
#include <vector>

#include "cuda/facts.h"
#include "cuda/kernel.h"

namespace rnnkern {

// [major, minor, multiprocessors, bytes of shared memory per block, clusters of 8 and of 16 such blocks that can run at
// once] of a CUDA device, as JSON.
std::string device_facts(int64_t index);

namespace cuda {

// The facts from the same numbers; the two of clusters are optional.
Facts facts_from(const char* op, const std::vector<int64_t>& numbers);

// The header and type of each kernel, as JSON: [["family/cuda/copy.cuh", "rnnkern::CopyKernel"], ...].
std::string programs_of(const std::vector<const Kernel*>& kernels);

}  // namespace cuda
}  // namespace rnnkern
