// The operators of linear scans; schemas in registration.cpp, meaning in rnnkern/ops/linear_scan.py.
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

}  // namespace rnnkern
