// Sparse attentive backtracking for one SIMD level. Included once per level file, which says the vector's width.
#pragma once

#include "common/room.h"
#include "common/simd.h"

#include "cells/lstm.h"
#include "relevancy/sab_product.h"

#include "relevancy/sab_attention.h"

#include "relevancy/sab_forward.h"

#include "relevancy/sab_backward.h"

namespace rnnkern {
namespace {

template <class T>
SabKernels<T> sab_kernels() {
  return {packed_size<T>, pack<T>, forward<T>, forward_room<T>, backward<T>, backward_room<T>};
}

}  // namespace
}  // namespace rnnkern
