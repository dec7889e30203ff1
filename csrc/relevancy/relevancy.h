// The operators of relevancy attention; schemas in registration.cpp, meaning in rnnkern/ops/_relevancy/relevancy.py.
// `weights` are V, W_a, U_a, v; `state` is always the whole one: s, (c), buffer, buffer_scores, buffer_ids, relevant,
// scores, ids, time. `dtype` is the caller's: floating-point tensors are float64 where it is, else float32, and where
// it is of 16 bits, V, W_a and U_a have no more.
#pragma once

#include <string>

#include "common/tensor.h"

namespace rnnkern {

// [h, s, the new state, with `maps` what was attended to and its ids, and when training what the backward needs: alpha
// (or, where nothing can leave the buffer, log-sum-exp of the scores), the slots of R that were overwritten (-1: none),
// and of an LSTM its gates and c].
Tensors relevancy_recurrence_cpu(std::string cell, Tensor u, Tensors weights, Tensors state, OptionalTensors params,
                                 OptionalTensor batch_sizes, OptionalTensor reset, OptionalTensor scores,
                                 int64_t buffer_size, double mix, bool dot, std::string dtype, bool training,
                                 bool maps);

// [du, dV, dW_a, dU_a, dv, ds, (dc), dbuffer, drelevant, dparams...]; `grad_state` is none, or of s, (c), buffer and
// relevant; `saved` is what the forward kept.
Tensors relevancy_recurrence_backward_cpu(std::string cell, OptionalTensor grad_h, OptionalTensor grad_s,
                                          OptionalTensors grad_state, Tensors weights, Tensors state,
                                          OptionalTensors params, OptionalTensor batch_sizes, OptionalTensor reset,
                                          OptionalTensor scores, int64_t buffer_size, double mix, bool dot,
                                          std::string dtype, Tensor h, Tensor s, Tensors saved);

// The same on a CUDA device.
Tensors relevancy_recurrence_cuda(std::string cell, Tensor u, Tensors weights, Tensors state, OptionalTensors params,
                                  OptionalTensor batch_sizes, OptionalTensor reset, OptionalTensor scores,
                                  int64_t buffer_size, double mix, bool dot, std::string dtype, bool training,
                                  bool maps);
Tensors relevancy_recurrence_backward_cuda(std::string cell, OptionalTensor grad_h, OptionalTensor grad_s,
                                           OptionalTensors grad_state, Tensors weights, Tensors state,
                                           OptionalTensors params, OptionalTensor batch_sizes, OptionalTensor reset,
                                           OptionalTensor scores, int64_t buffer_size, double mix, bool dot,
                                           std::string dtype, Tensor h, Tensor s, Tensors saved);

// Which CUDA kernels would run, and why, as JSON: of (T, B, n, nu, rho) and facts as device_facts tells them.
std::string relevancy_plan(std::string cell, std::string dtype, std::vector<int64_t> sizes, std::vector<int64_t> facts);

}  // namespace rnnkern
