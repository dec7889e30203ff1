// The operators of orthogonal weights; schemas in registration.cpp, semantics in rnnkern/ops/_orthogonal/orthogonal.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// Returns [result, and when training: kept (..., K, N, N), plan (..., 2)]: the saved products, and for each matrix the
// scheme (schemes.h) and the number of squarings.
Tensors skew_exp_cpu(Tensor A, bool minus_identity, bool training);

// The gradient of A, given that of the result; zero where A is not read.
Tensor skew_exp_backward_cpu(Tensor grad, Tensor A, Tensor kept, Tensor plan);

// Returns [result, and when training: P (Lambda + T)].
Tensors schur_weight_cpu(Tensor P, Tensor theta, Tensor gamma, Tensor T, bool training);

// Returns [dP, dtheta, dgamma, dT]; `half` is the P (Lambda + T) of the forward.
Tensors schur_weight_backward_cpu(Tensor grad, Tensor P, Tensor theta, Tensor gamma, Tensor T, Tensor half);

}  // namespace rnnkern
