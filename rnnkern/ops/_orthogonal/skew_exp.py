"""Derivatives of skew_exp."""

import torch

from rnnkern import reference
from rnnkern.ops.differentiable import differentiable
from rnnkern.ops.folds import as_batch

KEPT = {torch.float32: 2, torch.float64: 3}
"""Number of products that the forward pass saves for the backward pass (kept_products in
csrc/orthogonal/cpu/problem.h)."""

MOST_IN_LANES = 16
"""Number of rows up to which a CPU computes float64 matrices one per lane and keeps nothing (csrc/orthogonal/cpu)."""


def _reference_backward(grad, A, kept, plan):
    return torch.func.vjp(reference.skew_exp, A)[1](grad)


def _shapes(A, minus_identity, training):
    results = [A.new_empty(A.shape)]
    if training:
        in_lanes = A.device.type == "cpu" and A.dtype == torch.float64 and A.shape[-1] <= MOST_IN_LANES
        results.append(A.new_empty(*A.shape[:-2], 0 if in_lanes else KEPT[A.dtype], *A.shape[-2:]))
        results.append(A.new_empty(*A.shape[:-2], 2, dtype=torch.int64))
    return results


skew_exp = differentiable(
    "skew_exp",
    forward=lambda training, *args: torch.ops.rnnkern.skew_exp.default(*args, training),
    results=1,
    saves=lambda args, outputs: (args[0], *outputs[1:]),
    gradients=(0,),
    reference_backward=_reference_backward,
    leaves=(0, 1),
    fold=as_batch,
    shapes=_shapes,
    backward_shapes=lambda grad, A, kept, plan: A.new_empty(A.shape),
)
"""Function of (A, minus_identity), in float32 or float64, by the kernels of its device; the first result is the
exponential."""
