// The SIMD level of every processor: 128-bit vectors, as x86-64 and ARMv8 have them.

#include "relevancy/cpu_includes.h"

#define RNNKERN_VECTOR_BYTES 16
#define RNNKERN_VECTOR_REGISTERS 16
#include "relevancy/cpu_kernels.h"

namespace rnnkern {

RelevancyLevel relevancy_level_plain() { return {relevancy_kernels<float>(), relevancy_kernels<double>()}; }

}  // namespace rnnkern
