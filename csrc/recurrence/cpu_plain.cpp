// The SIMD level of every processor: 128-bit vectors, as x86-64 and ARMv8 have them.

#include "recurrence/cpu_includes.h"

#define RNNKERN_VECTOR_BYTES 16
#define RNNKERN_VECTOR_REGISTERS 16
#include "recurrence/cpu_kernels.h"

namespace rnnkern {

Level level_plain() {
  return {kernels<float>(), kernels<double>(), kernels<device::bfloat16>(), kernels<device::float16>()};
}

}  // namespace rnnkern
