// The SIMD level of x86-64 processors with AVX2 and FMA.
#if defined(__x86_64__)

#include "relevancy/sab_includes.h"

#pragma GCC target("avx2,fma")

#define RNNKERN_VECTOR_BYTES 32
#include "relevancy/sab_kernels.h"

namespace rnnkern {

SabLevel sab_level_avx2() { return {sab_kernels<float>(), sab_kernels<double>()}; }

}  // namespace rnnkern

#endif
