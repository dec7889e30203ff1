// Selects the target instruction set of a level source (*_level*.cpp). setup.py compiles each level source once per
// SIMD level, with RNNKERN_SIMD_LEVEL set to the name of the level. Include this header after everything that must not
// depend on the level: all code from here on is compiled for it.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define RNNKERN_LEVEL_plain 0
#define RNNKERN_LEVEL_avx2 1
#define RNNKERN_LEVEL_avx512 2
#define RNNKERN_LEVEL_avx512_bf16 3
#define RNNKERN_LEVEL_amx 4  // has no sources of its own
#define RNNKERN_LEVEL_OF(name) RNNKERN_LEVEL_##name
#define RNNKERN_LEVEL_NUMBER(name) RNNKERN_LEVEL_OF(name)

#if RNNKERN_LEVEL_NUMBER(RNNKERN_SIMD_LEVEL) == RNNKERN_LEVEL_plain
// 128-bit vectors, which every x86-64 and ARMv8 processor supports.
#define RNNKERN_VECTOR_BYTES 16
#define RNNKERN_VECTOR_REGISTERS 16
#elif RNNKERN_LEVEL_NUMBER(RNNKERN_SIMD_LEVEL) == RNNKERN_LEVEL_avx2
#pragma GCC target("avx2,fma,f16c")
#define RNNKERN_VECTOR_BYTES 32
#define RNNKERN_VECTOR_REGISTERS 16
#elif RNNKERN_LEVEL_NUMBER(RNNKERN_SIMD_LEVEL) == RNNKERN_LEVEL_avx512
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")
#define RNNKERN_VECTOR_BYTES 64
#define RNNKERN_VECTOR_REGISTERS 32
#else
#pragma GCC target("avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")
#define RNNKERN_VECTOR_BYTES 64
#define RNNKERN_VECTOR_REGISTERS 32
#define RNNKERN_BFLOAT16_DOTS 1
#endif

// Set if the level `amx` is built, which adds the tiles of cpu/tiles.h to the kernels of the AVX-512 levels.
#if RNNKERN_TILES
#pragma GCC target("amx-tile,amx-bf16")
#endif
