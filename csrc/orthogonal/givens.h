// The operators of layers of rotations; schemas in registration.cpp, meaning in rnnkern/ops/givens.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// The vectors of x, each through all layers: rows of x (..., R, N), or columns of (..., N, R). angles are (..., L, N /
// 2), as many matrices of them as x has.
Tensor givens_product_cpu(Tensor angles, Tensor x, bool columns, bool butterfly);

// [dangles, and if wanted: dx]; y is the forward's result.
Tensors givens_product_backward_cpu(Tensor grad, Tensor angles, Tensor y, bool columns, bool butterfly, bool needs_x);

}  // namespace rnnkern
