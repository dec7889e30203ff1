// The SIMD level of x86-64 processors with AVX-512 (F, DQ, BW, VL).
#if defined(__x86_64__)

#include "orthogonal/givens_includes.h"

#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")

#define RNNKERN_VECTOR_BYTES 64
#include "orthogonal/givens_kernels.h"

namespace rnnkern {

GivensLevel givens_level_avx512() { return {givens_kernels<float>(), givens_kernels<double>()}; }

}  // namespace rnnkern

#endif
