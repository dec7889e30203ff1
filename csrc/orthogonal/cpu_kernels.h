// skew_exp and its backward for one SIMD level. Included once per level file, which says the vector's width.
#pragma once

#include "common/simd.h"

#include "orthogonal/cpu_product.h"

#include "orthogonal/cpu_plan.h"

#include "orthogonal/cpu_sweep.h"

namespace rnnkern {
namespace {

template <class T>
SkewKernels<T> skew_kernels() {
  return {forward<T>, backward<T>, forward_room<T>, backward_room<T>};
}

}  // namespace
}  // namespace rnnkern
