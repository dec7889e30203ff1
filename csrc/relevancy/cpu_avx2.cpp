// The SIMD level of x86-64 processors with AVX2 and FMA.
#if defined(__x86_64__)

#include "relevancy/cpu_includes.h"

#pragma GCC target("avx2,fma")

#define RNNKERN_VECTOR_BYTES 32
#define RNNKERN_VECTOR_REGISTERS 16
#include "relevancy/cpu_kernels.h"

namespace rnnkern {

RelevancyLevel relevancy_level_avx2() { return {relevancy_kernels<float>(), relevancy_kernels<double>()}; }

}  // namespace rnnkern

#endif
