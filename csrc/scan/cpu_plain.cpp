// The SIMD level of every processor: 128-bit vectors, as x86-64 and ARMv8 have them.

#include "scan/cpu_includes.h"

#define RNNKERN_VECTOR_BYTES 16
#include "scan/cpu_kernels.h"

namespace rnnkern {

ScanLevel scan_level_plain() { return {scan_kernels<float>(), scan_kernels<double>()}; }

}  // namespace rnnkern
