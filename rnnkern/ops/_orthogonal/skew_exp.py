"""Derivatives of skew_exp: an autograd.Function around the forward, one around the backward, and the reference around
that."""

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops.transforms import applied, needs_derivatives, no_forward_mode, transformed

KEPT = {torch.float32: 2, torch.float64: 3}
"""Products that the forward keeps for the backward (kept_products in csrc/orthogonal/problem.h)."""

_operators = torch.ops.rnnkern


def skew_exp(A: Tensor, minus_identity: bool) -> Tensor:
    """Of float32 or float64, by the kernels of its device."""
    if needs_derivatives(A):
        return _apply(A, minus_identity)[0]
    return _operators.skew_exp.default(A, minus_identity, False)[0]


class SkewExp(torch.autograd.Function):
    @staticmethod
    def forward(A, minus_identity):
        return tuple(_operators.skew_exp.default(A, minus_identity, True))

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, *kept = output
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], *kept)

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return None, None
        backward = SkewExpBackward.apply if transformed() else SkewExpBackward.forward
        return backward(grad, *ctx.saved_tensors), None

    @staticmethod
    def vmap(info, dims, A, minus_identity):
        results = SkewExp.apply(A.movedim(dims[0], 0), minus_identity)
        return results, (0,) * len(results)


_apply = applied(SkewExp, "skew_exp")


class SkewExpBackward(torch.autograd.Function):
    """The backward for torch.func's transforms, which do not take the operator's register_autograd."""

    @staticmethod
    def forward(grad, A, kept, plan):
        return _operators.skew_exp_backward.default(grad, A, kept, plan)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, grad):
        return *_differentiate_backward(*ctx.saved_tensors, grad), None, None

    @staticmethod
    def vmap(info, dims, *args):
        args = [
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(args, dims, strict=True)
        ]
        return SkewExpBackward.apply(*args), 0

    jvp = no_forward_mode("skew_exp")


def _differentiate_backward(upstream: Tensor, A: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The vector-Jacobian product of the backward, which is the reference's gradient."""

    def backward(upstream, A):
        return torch.func.vjp(reference.skew_exp, A)[1](upstream)[0]

    return torch.func.vjp(backward, upstream, A)[1](grad)


def _forward_shapes(A, minus_identity, training):
    results = [A.new_empty(A.shape)]
    if training:
        results.append(A.new_empty(*A.shape[:-2], KEPT[A.dtype], *A.shape[-2:]))
        results.append(A.new_empty(*A.shape[:-2], 2, dtype=torch.int64))
    return results


def _backward_shapes(grad, A, kept, plan):
    return A.new_empty(A.shape)


if _extension.available:
    torch.library.register_fake("rnnkern::skew_exp", _forward_shapes)
    torch.library.register_fake("rnnkern::skew_exp_backward", _backward_shapes)
    torch.library.register_autograd(
        "rnnkern::skew_exp_backward", SkewExpBackward.backward, setup_context=SkewExpBackward.setup_context
    )
