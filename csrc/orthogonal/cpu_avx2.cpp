// The SIMD level of x86-64 processors with AVX2 and FMA.
#if defined(__x86_64__)

#include "orthogonal/cpu_includes.h"

#pragma GCC target("avx2,fma")

#define RNNKERN_VECTOR_BYTES 32
#define RNNKERN_VECTOR_REGISTERS 16
#include "orthogonal/cpu_kernels.h"

namespace rnnkern {

OrthogonalLevel orthogonal_level_avx2() { return {orthogonal_kernels<float>(), orthogonal_kernels<double>()}; }

}  // namespace rnnkern

#endif
