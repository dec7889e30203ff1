#pragma once

#include <vector>

namespace rnnkern {

// The instruction sets that CPU kernels are compiled for, each of which includes the previous ones: X(name, bytes of a
// vector, the macro that says that a compiler's target has it, whether this processor does). setup.py reads this list;
// common/simd_target.h selects the instructions.
#define RNNKERN_SIMD_LEVELS(X)                                                                         \
  X(plain, 16, __GNUC__, true)                                                                         \
  X(avx2, 32, __AVX2__, HAS("avx2") && HAS("fma") && HAS("f16c"))                                      \
  X(avx512, 64, __AVX512VL__, HAS("avx512f") && HAS("avx512dq") && HAS("avx512bw") && HAS("avx512vl")) \
  X(avx512_bf16, 64, __AVX512BF16__, HAS("avx512bf16"))                                                \
  X(amx, 64, __AMX_BF16__, has_tiles())

#define RNNKERN_NAME(name, ...) name,
enum class SimdLevel { RNNKERN_SIMD_LEVELS(RNNKERN_NAME) };
#undef RNNKERN_NAME

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
