// What the operators that tell a launch plan have in common.
#pragma once

#include <string>
#include <vector>

#include "cuda/facts.h"
#include "cuda/kernel.h"

namespace rnnkern {

// [major, minor, multiprocessors, bytes of shared memory that a block can have, clusters of 8 such blocks that run at
// once, and of 16] of a CUDA device, as JSON.
std::string device_facts(int64_t index);

namespace cuda {

// From the same numbers; those of clusters may be left out where there are none.
Facts facts_from(const char* op, const std::vector<int64_t>& numbers);

// The header and type of each kernel, as JSON: [["family/cuda/copy.cuh", "rnnkern::CopyKernel"], ...].
std::string programs_of(const std::vector<const Kernel*>& kernels);

}  // namespace cuda
}  // namespace rnnkern
