// The operators of layers of Givens rotations; schemas in registration.cpp, semantics in
// rnnkern/ops/_orthogonal/givens.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// Applies all layers to the vectors of x: its rows (..., R, N), or its columns (..., N, R). angles are (..., L, N / 2),
// with the batch dimensions of x.
Tensor givens_product_cpu(Tensor angles, Tensor x, bool columns, bool butterfly);

// Returns [dangles, and if wanted: dx]; y is the forward's result.
Tensors givens_product_backward_cpu(Tensor grad, Tensor angles, Tensor y, bool columns, bool butterfly, bool needs_x);

// Returns [h, the final state (B, C)]. C is N or, for complex numbers, which have `phases` and `diagonal`, 2 N. `u` is
// (T, B, C), or (rows, C) with `batch_sizes`; `angles` and `phases` are (L, N / 2), `diagonal` and `bias` (N,).
using GivensRecurrenceOperator = Tensors(Tensor u, Tensor angles, OptionalTensor phases, OptionalTensor diagonal,
                                         Tensor bias, Tensor h0, OptionalTensor batch_sizes, OptionalTensor reset,
                                         bool reverse, bool butterfly);
GivensRecurrenceOperator givens_recurrence_cpu, givens_recurrence_cuda;

// Returns [du, dangles, dbias, dh0, for complex numbers: dphases, ddiagonal]. `h` is the forward's result; missing
// gradients are zero.
using GivensRecurrenceBackwardOperator = Tensors(OptionalTensor grad_h, OptionalTensor grad_last, Tensor u,
                                                 Tensor angles, OptionalTensor phases, OptionalTensor diagonal,
                                                 Tensor bias, Tensor h0, Tensor h, OptionalTensor batch_sizes,
                                                 OptionalTensor reset, bool reverse, bool butterfly);
GivensRecurrenceBackwardOperator givens_recurrence_backward_cpu, givens_recurrence_backward_cuda;

// The CUDA kernels that a recurrence of N numbers of a dtype starts, as JSON: [[header, type], ...], or
// [] if there is no kernel.
std::string givens_programs(std::string dtype, bool is_complex, int64_t size);

}  // namespace rnnkern
