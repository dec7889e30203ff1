// The SIMD level of x86-64 processors with AVX2 and FMA.
#if defined(__x86_64__)

#include "relevancy/gather_includes.h"

#pragma GCC target("avx2,fma")

#define RNNKERN_VECTOR_BYTES 32
#include "relevancy/gather_kernels.h"

namespace rnnkern {

GatherLevel gather_level_avx2() { return {gather_kernels<float>(), gather_kernels<double>()}; }

}  // namespace rnnkern

#endif
