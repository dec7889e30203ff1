// The SIMD level of every processor: 128-bit vectors, as x86-64 and ARMv8 have them.

#include "orthogonal/cpu_includes.h"

#define RNNKERN_VECTOR_BYTES 16
#define RNNKERN_VECTOR_REGISTERS 16
#include "orthogonal/cpu_kernels.h"

namespace rnnkern {

OrthogonalLevel orthogonal_level_plain() { return {orthogonal_kernels<float>(), orthogonal_kernels<double>()}; }

}  // namespace rnnkern
