// Orthogonal weights and their backwards for one SIMD level. Included once per level file, which says the vector's
// width.
#pragma once

#include "orthogonal/cpu_schur.h"
#include "orthogonal/cpu_sweep.h"
#include "orthogonal/problem.h"

namespace rnnkern {
namespace {

template <class T>
OrthogonalKernels<T> orthogonal_kernels() {
  return {{forward<T>, forward_room<T>},
          {backward<T>, backward_room<T>},
          {schur_forward<T>, schur_forward_room<T>},
          {schur_backward<T>, schur_backward_room<T>}};
}

}  // namespace
}  // namespace rnnkern
