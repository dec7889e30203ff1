#pragma once

#include <vector>

namespace rnnkern {

// The instruction sets that the CPU kernels are compiled for; a processor that has one has those before it.
enum class SimdLevel { plain, avx2, avx512, avx512_bf16 };

const char* name(SimdLevel level);

// The highest that this processor has. Other processors than x86-64 have `plain` alone.
SimdLevel processor_simd_level();

// Those that this processor has and that were compiled, lowest first.
std::vector<SimdLevel> supported_simd_levels();

// The level that kernels take: the highest supported, unless the environment variable RNNKERN_SIMD or a call
// of set_simd_level names another. One atomic load after the first call.
SimdLevel simd_level();

// Bytes of a vector of the level in use.
int simd_vector_bytes();

// Takes the name of a supported level; returns the name of the level that was in use.
const char* set_simd_level(const char* name);

}  // namespace rnnkern
