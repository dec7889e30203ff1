// The operators of layers of rotations; schemas in registration.cpp, meaning in rnnkern/ops/_orthogonal/givens.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// The vectors of x, each through all layers: rows of x (..., R, N), or columns of (..., N, R). angles are (..., L, N /
// 2), as many matrices of them as x has.
Tensor givens_product_cpu(Tensor angles, Tensor x, bool columns, bool butterfly);

// [dangles, and if wanted: dx]; y is the forward's result.
Tensors givens_product_backward_cpu(Tensor grad, Tensor angles, Tensor y, bool columns, bool butterfly, bool needs_x);

// [h, the final state (B, C)], C = N columns, or the 2 N parts of complex numbers, which have `phases` and `diagonal`.
// `u` is (T, B, C), or (rows, C) beside `batch_sizes`; `angles` are (L, N / 2), `phases` too, `diagonal` and `bias`
// (N,).
Tensors givens_recurrence_cpu(Tensor u, Tensor angles, OptionalTensor phases, OptionalTensor diagonal, Tensor bias,
                              Tensor h0, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                              bool butterfly);
Tensors givens_recurrence_cuda(Tensor u, Tensor angles, OptionalTensor phases, OptionalTensor diagonal, Tensor bias,
                               Tensor h0, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                               bool butterfly);

// [du, dangles, dbias, dh0, of complex numbers: dphases, ddiagonal]; `h` is the forward's, and a gradient that is
// missing is zero.
Tensors givens_recurrence_backward_cpu(OptionalTensor grad_h, OptionalTensor grad_last, Tensor u, Tensor angles,
                                       OptionalTensor phases, OptionalTensor diagonal, Tensor bias, Tensor h0, Tensor h,
                                       OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool butterfly);
Tensors givens_recurrence_backward_cuda(OptionalTensor grad_h, OptionalTensor grad_last, Tensor u, Tensor angles,
                                        OptionalTensor phases, OptionalTensor diagonal, Tensor bias, Tensor h0,
                                        Tensor h, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                                        bool butterfly);

// The CUDA kernels that a recurrence of N numbers of a dtype starts, as JSON: [[header, type], ...]; none where there
// is no kernel.
std::string givens_programs(std::string dtype, bool is_complex, int64_t size);

}  // namespace rnnkern
