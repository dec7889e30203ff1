// The SIMD level of x86-64 processors with AVX-512 (F, DQ, BW, VL) and AVX512_BF16: bfloat16 is multiplied as it is
// stored, all else is that of avx512.
#if defined(__x86_64__)

#include "recurrence/cpu_includes.h"

#pragma GCC target("avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")

#define RNNKERN_VECTOR_BYTES 64
#define RNNKERN_VECTOR_REGISTERS 32
#define RNNKERN_BFLOAT16_DOTS 1
#include "recurrence/cpu_kernels.h"

namespace rnnkern {

Level level_avx512_bf16() {
  Level level = level_avx512();
  level.bf16 = kernels<device::bfloat16>();
  return level;
}

}  // namespace rnnkern

#endif
