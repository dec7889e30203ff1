// The SIMD level of every processor: 128-bit vectors, as x86-64 and ARMv8 have them.

#include "relevancy/sab_includes.h"

#define RNNKERN_VECTOR_BYTES 16
#include "relevancy/sab_kernels.h"

namespace rnnkern {

SabLevel sab_level_plain() { return {sab_kernels<float>(), sab_kernels<double>()}; }

}  // namespace rnnkern
