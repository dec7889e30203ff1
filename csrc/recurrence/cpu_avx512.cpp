// The SIMD level of x86-64 processors with AVX-512 (F, DQ, BW, VL).
#if defined(__x86_64__)

#include "recurrence/cpu_includes.h"

#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")

#define RNNKERN_VECTOR_BYTES 64
#define RNNKERN_VECTOR_REGISTERS 32
#include "recurrence/cpu_kernels.h"

namespace rnnkern {

Level level_avx512() {
  return {kernels<float>(), kernels<double>(), kernels<device::bfloat16>(), kernels<device::float16>()};
}

}  // namespace rnnkern

#endif
