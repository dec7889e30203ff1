// The operators of this family; schemas in registration.cpp, semantics in rnnkern/ops/_scan/linear_scan.py and
// moment_filter.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// Returns [if `sequence`: h, the final state (B, C)]. `a` is (C,) or has the sizes of `x`. `h0` may be missing if `x`
// is (T, B, C), and is then zero.
Tensors linear_scan_cpu(Tensor a, Tensor x, OptionalTensor h0, OptionalTensor batch_sizes, OptionalTensor reset,
                        bool reverse, bool sequence);

// Returns [dx, dh0, if `needs_a`: da]; `h` is the forward's, and missing gradients are zero.
Tensors linear_scan_backward_cpu(OptionalTensor grad_h, OptionalTensor grad_last, Tensor a, OptionalTensor h0, Tensor h,
                                 OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool needs_a);

// Returns [y, v (B, C), with `beta`: q (B, C), if `every`: the saved states (pieces - 1, 2, B, C)]. States are float32
// if `u` has 16 bits. Missing states are zero; with `batch_sizes`, `v0` is required.
Tensors moment_filter_cpu(Tensor u, OptionalTensor v0, OptionalTensor q0, OptionalTensor batch_sizes,
                          OptionalTensor reset, bool reverse, double mu, double s, std::optional<double> beta,
                          double eps, int64_t every);

// Returns [du, dv0, with `beta`: dq0]; missing gradients are zero. Without `beta`, `u` may be any tensor with its sizes
// and dtype.
Tensors moment_filter_backward_cpu(OptionalTensor grad_y, OptionalTensor grad_v, OptionalTensor grad_q, Tensor u,
                                   OptionalTensor v0, OptionalTensor q0, OptionalTensor kept,
                                   OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, double mu, double s,
                                   std::optional<double> beta, double eps, int64_t every);

}  // namespace rnnkern
