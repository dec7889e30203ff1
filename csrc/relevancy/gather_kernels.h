// Attention to chosen states for one SIMD level. Included once per level file, which says the vector's width.
#pragma once

#include "relevancy/gather_backward.h"
#include "relevancy/gather_forward.h"
#include "relevancy/gather_problem.h"

namespace rnnkern {
namespace {

template <class T>
GatherKernels<T> gather_kernels() {
  return {{gather_forward<T>, gather_forward_room<T>}, {gather_backward<T>, gather_backward_room<T>}};
}

}  // namespace
}  // namespace rnnkern
