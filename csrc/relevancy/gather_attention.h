// The operators of gather_attention; schemas in registration.cpp, semantics in
// rnnkern/ops/_relevancy/gather_attention.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// Returns [out, when training: the log-sum-exp of each row's scores (B, T), if wanted: weights (B, T, kappa)]. v is (G,
// n), one row for every B / G samples; an index outside 0..M-1 is skipped.
Tensors gather_attention_cpu(Tensor q, Tensor u, Tensor h, Tensor idx, Tensor v, bool dot, bool training, bool weights);

// Returns [dq, du, dh, dv]; `lse` is the forward's log-sum-exp.
Tensors gather_attention_backward_cpu(Tensor grad, Tensor q, Tensor u, Tensor h, Tensor idx, Tensor v, Tensor lse,
                                      bool dot);

}  // namespace rnnkern
