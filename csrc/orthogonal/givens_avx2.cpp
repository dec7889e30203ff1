// The SIMD level of x86-64 processors with AVX2 and FMA.
#if defined(__x86_64__)

#include "orthogonal/givens_includes.h"

#pragma GCC target("avx2,fma")

#define RNNKERN_VECTOR_BYTES 32
#include "orthogonal/givens_kernels.h"

namespace rnnkern {

GivensLevel givens_level_avx2() { return {givens_kernels<float>(), givens_kernels<double>()}; }

}  // namespace rnnkern

#endif
