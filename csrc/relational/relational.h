// The operators of this family; schemas in registration.cpp, semantics in rnnkern/ops/_relational/similarity.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// Returns [R, if `scores`: S, with `values`: R values]. `weight` and `bias` are (G, d), a row for B / G samples in a
// row. `norm` is "unbiased", "biased" or "none".
Tensors similarity_cpu(Tensor x, OptionalTensor y, OptionalTensor weight, OptionalTensor bias, OptionalTensor values,
                       OptionalTensor lengths, std::vector<int64_t> segments, std::string norm, double eps,
                       std::string mask, double scale, bool packed, bool scores);

// Returns [dx, dy, dweight, dbias, dvalues], (0,) for arguments that are missing; missing gradients are zero.
Tensors similarity_backward_cpu(OptionalTensor grad_R, OptionalTensor grad_scores, OptionalTensor grad_product,
                                Tensor x, OptionalTensor y, OptionalTensor weight, OptionalTensor bias,
                                OptionalTensor values, OptionalTensor lengths, Tensor R, std::vector<int64_t> segments,
                                std::string norm, double eps, std::string mask, double scale, bool packed);

}  // namespace rnnkern
