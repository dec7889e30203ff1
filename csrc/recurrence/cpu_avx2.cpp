// The SIMD level of x86-64 processors with AVX2, FMA and F16C.
#if defined(__x86_64__)

#include "recurrence/cpu_includes.h"

#pragma GCC target("avx2,fma,f16c")

#define RNNKERN_VECTOR_BYTES 32
#define RNNKERN_VECTOR_REGISTERS 16
#include "recurrence/cpu_kernels.h"

namespace rnnkern {

Level level_avx2() {
  return {kernels<float>(), kernels<double>(), kernels<device::bfloat16>(), kernels<device::float16>()};
}

}  // namespace rnnkern

#endif
