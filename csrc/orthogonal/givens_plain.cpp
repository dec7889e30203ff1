// The SIMD level of every processor: 128-bit vectors, as x86-64 and ARMv8 have them.

#include "orthogonal/givens_includes.h"

#define RNNKERN_VECTOR_BYTES 16
#include "orthogonal/givens_kernels.h"

namespace rnnkern {

GivensLevel givens_level_plain() { return {givens_kernels<float>(), givens_kernels<double>()}; }

}  // namespace rnnkern
