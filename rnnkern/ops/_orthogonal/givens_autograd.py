"""Derivatives of givens_product: an autograd.Function around the forward, one around the backward, and the reference
around that."""

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops.transforms import applied, needs_derivatives, no_forward_mode, transformed
from rnnkern.reference._givens import givens_layers

_operators = torch.ops.rnnkern


def givens_product(angles: Tensor, x: Tensor, columns: bool, butterfly: bool) -> Tensor:
    """Of float32 or float64, by the kernel of a CPU; x is (..., R, N), or (..., N, R) by columns."""
    if needs_derivatives(angles, x):
        return _apply(angles, x, columns, butterfly)
    return _operators.givens_product.default(angles, x, columns, butterfly)


def _stacked(info, dims, args):
    return [
        x if not isinstance(x, Tensor)
        else x.expand(info.batch_size, *x.shape) if dim is None
        else x.movedim(dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]  # fmt: skip


class GivensProduct(torch.autograd.Function):
    @staticmethod
    def forward(angles, x, columns, butterfly):
        return _operators.givens_product.default(angles, x, columns, butterfly)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], output)
        ctx.columns, ctx.butterfly = inputs[2:]

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None, None
        needs_x = ctx.needs_input_grad[1]
        backward = GivensProductBackward.apply if transformed() else GivensProductBackward.forward
        found = backward(grad, *ctx.saved_tensors, ctx.columns, ctx.butterfly, needs_x)
        return found[0], found[1] if needs_x else None, None, None

    @staticmethod
    def vmap(info, dims, *args):
        return GivensProduct.apply(*_stacked(info, dims, args)), 0


_apply = applied(GivensProduct, "givens_product")


class GivensProductBackward(torch.autograd.Function):
    """The backward for torch.func's transforms, which do not take the operator's register_autograd."""

    @staticmethod
    def forward(grad, angles, y, columns, butterfly, needs_x):
        return tuple(_operators.givens_product_backward.default(grad, angles, y, columns, butterfly, needs_x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3])
        ctx.columns, ctx.butterfly, ctx.needs_x = inputs[3:]

    @staticmethod
    def backward(ctx, *grads):
        found = _differentiate_backward(ctx.saved_tensors, grads, ctx.columns, ctx.butterfly, ctx.needs_x)
        return *found, None, None, None

    @staticmethod
    def vmap(info, dims, *args):
        found = GivensProductBackward.apply(*_stacked(info, dims, args))
        return found, (0,) * len(found)

    jvp = no_forward_mode("givens_product")


def _differentiate_backward(inputs, grads, columns, butterfly, needs_x):
    """The vector-Jacobian product of the backward, which rotates the result back and takes the reference's gradient."""
    style = "butterfly" if butterfly else "tunable"

    def forward(angles, x):
        return givens_layers(angles, x.mT, style).mT if columns else givens_layers(angles, x, style)

    def backward(upstream, angles, y):
        x = givens_layers(angles, y.mT if columns else y, style, inverse=True)
        found = torch.func.vjp(forward, angles, x.mT if columns else x)[1](upstream)
        return found if needs_x else found[:1]

    return torch.func.vjp(backward, *inputs)[1](tuple(grads))


def _forward_shapes(angles, x, columns, butterfly):
    return x.new_empty(x.shape)


def _backward_shapes(grad, angles, y, columns, butterfly, needs_x):
    return [like.new_empty(like.shape) for like in (angles, y)[: 1 + needs_x]]


def _differentiate(ctx, grads):
    return GivensProductBackward.backward(ctx, *grads)


if _extension.available:
    torch.library.register_fake("rnnkern::givens_product", _forward_shapes)
    torch.library.register_fake("rnnkern::givens_product_backward", _backward_shapes)
    torch.library.register_autograd(
        "rnnkern::givens_product_backward", _differentiate, setup_context=GivensProductBackward.setup_context
    )
