// The SIMD level of x86-64 processors with AVX2 and FMA.
#if defined(__x86_64__)

#include "scan/cpu_includes.h"

#pragma GCC target("avx2,fma")

#define RNNKERN_VECTOR_BYTES 32
#include "scan/cpu_kernels.h"

namespace rnnkern {

ScanLevel scan_level_avx2() { return {scan_kernels<float>(), scan_kernels<double>()}; }

}  // namespace rnnkern

#endif
