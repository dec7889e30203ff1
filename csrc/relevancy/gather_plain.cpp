// The SIMD level of every processor: 128-bit vectors, as x86-64 and ARMv8 have them.

#include "relevancy/gather_includes.h"

#define RNNKERN_VECTOR_BYTES 16
#include "relevancy/gather_kernels.h"

namespace rnnkern {

GatherLevel gather_level_plain() { return {gather_kernels<float>(), gather_kernels<double>()}; }

}  // namespace rnnkern
