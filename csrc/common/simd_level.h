#pragma once

#include <vector>

namespace rnnkern {

// Instruction sets that the CPU kernels are compiled for. Each level includes the previous ones.
enum class SimdLevel { plain, avx2, avx512, avx512_bf16, amx };

const char* name(SimdLevel level);

// The highest level that this processor supports. Processors other than x86-64 support only `plain`.
SimdLevel processor_simd_level();

// Levels that this processor supports and that were compiled, in increasing order.
std::vector<SimdLevel> supported_simd_levels();

// The level that kernels use: the highest supported one, unless set_simd_level or the environment variable RNNKERN_SIMD
// selects another. After the first call this is a single atomic load.
SimdLevel simd_level();

// Vector width in bytes of the level in use.
int simd_vector_bytes();

// Selects a supported level by name and returns the name of the previous one.
const char* set_simd_level(const char* name);

}  // namespace rnnkern
