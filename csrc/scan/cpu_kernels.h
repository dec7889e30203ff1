// Linear scans and moment filters for one SIMD level. Included once per level file, which says the vector's width.
#pragma once

#include "scan/cpu_backward.h"
#include "scan/cpu_forward.h"
#include "scan/cpu_moments.h"
#include "scan/problem.h"

namespace rnnkern {
namespace {

template <class T>
ScanKernels<T> scan_kernels() {
  return {scan_forward<T>, scan_backward<T>, moments_forward<T>, moments_backward<T>};
}

}  // namespace
}  // namespace rnnkern
