// Sparse attentive backtracking; schemas in registration.cpp, semantics in rnnkern/ops/_relevancy/sab.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// `attention` is (w) or (W, w), `state` is (h, c, memory, time). Returns [out, h, c, memory, time, weights, slots, and
// when training: sums (like out without its columns), c of every step].
Tensors sab_recurrence_cpu(Tensor u, Tensor R, OptionalTensor bias, Tensors attention, Tensors state,
                           OptionalTensor batch_sizes, OptionalTensor reset, int64_t steps, int64_t top_k,
                           int64_t attend_every, int64_t truncation, bool training);

// Returns [du, dR, dbias, dattention..., dh, dc, dmemory]. `grad_state` has the gradients of h, c and memory, or is
// empty; `saved` is (weights, slots, sums, c).
Tensors sab_recurrence_backward_cpu(OptionalTensor grad_out, Tensors grad_state, Tensor u, Tensor R,
                                    OptionalTensor bias, Tensors attention, Tensors state, OptionalTensor batch_sizes,
                                    OptionalTensor reset, int64_t steps, int64_t top_k, int64_t attend_every,
                                    int64_t truncation, Tensor out, Tensors saved);

}  // namespace rnnkern
