// The operators of attention to chosen states; schemas in registration.cpp, meaning in
// rnnkern/ops/_relevancy/gather_attention.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// [out, when training: the log-sum-exp of each row's scores (B, T), when asked for: weights (B, T, kappa)]. v is (G,
// n), one for every B / G samples; an index outside 0..M-1 is no member.
Tensors gather_attention_cpu(Tensor q, Tensor u, Tensor h, Tensor idx, Tensor v, bool dot, bool training, bool weights);

// [dq, du, dh, dv]; `lse` is the forward's.
Tensors gather_attention_backward_cpu(Tensor grad, Tensor q, Tensor u, Tensor h, Tensor idx, Tensor v, Tensor lse,
                                      bool dot);

}  // namespace rnnkern
