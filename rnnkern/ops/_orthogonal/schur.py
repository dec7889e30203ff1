"""Derivatives of schur_weight: an autograd.Function around the forward, one around the backward, and the reference
around that."""

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops.transforms import applied, needs_derivatives, no_forward_mode, transformed

_operators = torch.ops.rnnkern


def schur_weight(P: Tensor, theta: Tensor, gamma: Tensor, T: Tensor) -> Tensor:
    """Of float32 or float64, by the kernel of a CPU."""
    if needs_derivatives(P, theta, gamma, T):
        return _apply(P, theta, gamma, T)[0]
    return _operators.schur_weight.default(P, theta, gamma, T, False)[0]


def _stacked(info, dims, args):
    return [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]


class SchurWeight(torch.autograd.Function):
    @staticmethod
    def forward(P, theta, gamma, T):
        return tuple(_operators.schur_weight.default(P, theta, gamma, T, True))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx, grad, _):
        if grad is None:
            return None, None, None, None
        backward = SchurWeightBackward.apply if transformed() else SchurWeightBackward.forward
        return backward(grad, *ctx.saved_tensors)

    @staticmethod
    def vmap(info, dims, *args):
        return SchurWeight.apply(*_stacked(info, dims, args)), (0, 0)


_apply = applied(SchurWeight, "schur_weight")


class SchurWeightBackward(torch.autograd.Function):
    """The backward for torch.func's transforms, which do not take the operator's register_autograd."""

    @staticmethod
    def forward(grad, P, theta, gamma, T, half):
        return tuple(_operators.schur_weight_backward.default(grad, P, theta, gamma, T, half))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:5])

    @staticmethod
    def backward(ctx, *grads):
        return *_differentiate_backward(ctx.saved_tensors, grads), None

    @staticmethod
    def vmap(info, dims, *args):
        return SchurWeightBackward.apply(*_stacked(info, dims, args)), (0, 0, 0, 0)

    jvp = no_forward_mode("schur_weight")


def _differentiate_backward(inputs, grads):
    """The vector-Jacobian product of the backward, which is the reference's gradient."""

    def backward(upstream, *inputs):
        return torch.func.vjp(reference.schur_weight, *inputs)[1](upstream)

    return torch.func.vjp(backward, *inputs)[1](tuple(grads))


def _forward_shapes(P, theta, gamma, T, training):
    return [P.new_empty(P.shape) for _ in range(1 + training)]


def _backward_shapes(grad, P, theta, gamma, T, half):
    return [x.new_empty(x.shape) for x in (P, theta, gamma, T)]


def _differentiate(ctx, grads):
    return SchurWeightBackward.backward(ctx, *grads)


if _extension.available:
    torch.library.register_fake("rnnkern::schur_weight", _forward_shapes)
    torch.library.register_fake("rnnkern::schur_weight_backward", _backward_shapes)
    torch.library.register_autograd(
        "rnnkern::schur_weight_backward", _differentiate, setup_context=SchurWeightBackward.setup_context
    )
