// The operators of orthogonal weights; schemas in registration.cpp, meaning in rnnkern/ops/_orthogonal/orthogonal.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// [result, and when training: kept (..., K, N, N), plan (..., 2)]: products for the backward, and for each matrix which
// scheme served (schemes.h) and how often its result was squared.
Tensors skew_exp_cpu(Tensor A, bool minus_identity, bool training);

// The gradient of A from that of the result; zero where A is not read.
Tensor skew_exp_backward_cpu(Tensor grad, Tensor A, Tensor kept, Tensor plan);

// [result, and when training: P (Lambda + T)].
Tensors schur_weight_cpu(Tensor P, Tensor theta, Tensor gamma, Tensor T, bool training);

// [dP, dtheta, dgamma, dT]; `half` is what the forward kept.
Tensors schur_weight_backward_cpu(Tensor grad, Tensor P, Tensor theta, Tensor gamma, Tensor T, Tensor half);

}  // namespace rnnkern
