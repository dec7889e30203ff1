// The operators of this family; schemas in registration.cpp, meaning in rnnkern/ops/_scan/linear_scan.py and
// moment_filter.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// [if `sequence`: h, the final state (B, C)]. `a` is (C,) or of the sizes of `x`; `h0` may be missing where `x` is (T,
// B, C), and is zero then.
Tensors linear_scan_cpu(Tensor a, Tensor x, OptionalTensor h0, OptionalTensor batch_sizes, OptionalTensor reset,
                        bool reverse, bool sequence);

// [dx, dh0, if `needs_a`: da]; `h` is the forward's, and a gradient that is missing is zero.
Tensors linear_scan_backward_cpu(OptionalTensor grad_h, OptionalTensor grad_last, Tensor a, OptionalTensor h0, Tensor h,
                                 OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool needs_a);

// [y, v (B, C), with `beta`: q (B, C), if `every`: what is kept (pieces - 1, 2, B, C)]. States are float32 where `u`
// has 16 bits; one that is missing is zero, of which `v0` must be there beside `batch_sizes`.
Tensors moment_filter_cpu(Tensor u, OptionalTensor v0, OptionalTensor q0, OptionalTensor batch_sizes,
                          OptionalTensor reset, bool reverse, double mu, double s, std::optional<double> beta,
                          double eps, int64_t every);

// [du, dv0, with `beta`: dq0]; a gradient that is missing is zero. Without `beta` any tensor like `u` does in its
// place.
Tensors moment_filter_backward_cpu(OptionalTensor grad_y, OptionalTensor grad_v, OptionalTensor grad_q, Tensor u,
                                   OptionalTensor v0, OptionalTensor q0, OptionalTensor kept,
                                   OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, double mu, double s,
                                   std::optional<double> beta, double eps, int64_t every);

}  // namespace rnnkern
