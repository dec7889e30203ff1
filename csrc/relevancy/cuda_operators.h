// The CUDA part of the operators that relevancy/relevancy.h explains.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

Tensors relevancy_recurrence_cuda(std::string cell, Tensor u, Tensors weights, Tensors state, OptionalTensors params,
                                  OptionalTensor batch_sizes, OptionalTensor reset, OptionalTensor scores,
                                  int64_t buffer_size, double mix, bool dot, bool training, bool maps);
Tensors relevancy_recurrence_backward_cuda(std::string cell, OptionalTensor grad_h, OptionalTensor grad_s,
                                           Tensors grad_state, Tensors weights, Tensors state, OptionalTensors params,
                                           OptionalTensor batch_sizes, OptionalTensor reset, OptionalTensor scores,
                                           int64_t buffer_size, double mix, bool dot, Tensor h, Tensor s,
                                           Tensors saved);

}  // namespace rnnkern
