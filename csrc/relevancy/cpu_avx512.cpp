// The SIMD level of x86-64 processors with AVX-512 (F, DQ, BW, VL).
#if defined(__x86_64__)

#include "relevancy/cpu_includes.h"

#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")

#define RNNKERN_VECTOR_BYTES 64
#define RNNKERN_VECTOR_REGISTERS 32
#include "relevancy/cpu_kernels.h"

namespace rnnkern {

RelevancyLevel relevancy_level_avx512() { return {relevancy_kernels<float>(), relevancy_kernels<double>()}; }

}  // namespace rnnkern

#endif
