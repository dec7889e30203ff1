// The operators of relevancy attention; schemas in registration.cpp, semantics in rnnkern/ops/_relevancy/relevancy.py.
// `weights` are V, W_a, U_a, v; `state` is always complete: s, (c), buffer, buffer_scores, buffer_ids, relevant,
// scores, ids, time. `dtype` is the caller's dtype: tensors are float64 if it is float64, else float32; if it is a
// 16-bit type, the values of V, W_a and U_a have 16 bits.
#pragma once

#include <string>

#include "common/tensor.h"

namespace rnnkern {

// Returns [h, s, the new state, with `maps` the attention weights and their ids, and when training what the backward
// needs: alpha (unless no event can leave the buffer), the slots of the relevant set that were overwritten (-1: none),
// and for an LSTM its gates and c].
using RelevancyOperator = Tensors(std::string cell, Tensor u, Tensors weights, Tensors state, OptionalTensors params,
                                  OptionalTensor batch_sizes, OptionalTensor reset, OptionalTensor scores,
                                  int64_t buffer_size, double mix, bool dot, std::string dtype, bool training,
                                  bool maps);
RelevancyOperator relevancy_recurrence_cpu, relevancy_recurrence_cuda;

// Returns [du, dV, dW_a, dU_a, dv, ds, (dc), dbuffer, drelevant, dparams...]. `grad_state` is empty, or has the
// gradients of s, (c), buffer and relevant; `saved` is what the forward saved.
using RelevancyBackwardOperator = Tensors(std::string cell, OptionalTensor grad_h, OptionalTensor grad_s,
                                          OptionalTensors grad_state, Tensors weights, Tensors state,
                                          OptionalTensors params, OptionalTensor batch_sizes, OptionalTensor reset,
                                          OptionalTensor scores, int64_t buffer_size, double mix, bool dot,
                                          std::string dtype, Tensor h, Tensor s, Tensors saved);
RelevancyBackwardOperator relevancy_recurrence_backward_cpu, relevancy_recurrence_backward_cuda;

// The CUDA kernels that would run, and the reason, as JSON, from (T, B, n, nu, rho) and facts as in
// cuda/facts.h.
std::string relevancy_plan(std::string cell, std::string dtype, std::vector<int64_t> sizes, std::vector<int64_t> facts);

}  // namespace rnnkern
