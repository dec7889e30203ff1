"""Derivatives of schur_weight."""

import torch

from rnnkern import reference
from rnnkern.ops.differentiable import differentiable
from rnnkern.ops.folds import as_batch


def _reference_backward(grad, P, theta, gamma, T, half):
    return torch.func.vjp(reference.schur_weight, P, theta, gamma, T)[1](grad)


schur_weight = differentiable(
    "schur_weight",
    forward=lambda training, *args: torch.ops.rnnkern.schur_weight.default(*args, training),
    results=1,
    saves=lambda args, outputs: (*args, outputs[1]),
    gradients=range(4),
    reference_backward=_reference_backward,
    leaves=range(5),
    fold=as_batch,
    shapes=lambda P, theta, gamma, T, training: [P.new_empty(P.shape) for _ in range(1 + training)],
    backward_shapes=lambda grad, *args: [x.new_empty(x.shape) for x in args[:4]],
)
"""Function of (P, theta, gamma, T), in float32 or float64, by the CPU kernel; the first result is the weight."""
