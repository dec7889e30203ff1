// Sparse attentive backtracking for one SIMD level. Included once per level file, which says the vector's width.
#pragma once

#include "relevancy/sab_backward.h"
#include "relevancy/sab_forward.h"
#include "relevancy/sab_problem.h"
#include "relevancy/sab_product.h"

namespace rnnkern {
namespace {

template <class T>
SabKernels<T> sab_kernels() {
  return {Packed<T>::size, pack<T>, forward<T>, forward_room<T>, backward<T>, backward_room<T>};
}

}  // namespace
}  // namespace rnnkern
