"""Derivatives of gather_attention: an autograd.Function around the forward, one around the backward, and the reference
around that."""

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops.transforms import applied, needs_derivatives, no_forward_mode, transformed

_operators = torch.ops.rnnkern


def gather_attention(
    q: Tensor, u: Tensor, h: Tensor, idx: Tensor, v: Tensor, dot: bool, weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Of float32 or float64, by the kernels of its device; v is (G, n)."""
    if needs_derivatives(q, u, h, v):
        out, _, *rest = _apply(q, u, h, idx, v, dot, weights)
    else:
        out, *rest = _operators.gather_attention.default(q, u, h, idx, v, dot, False, weights)
    return out, *(rest or [None])


def _folded(info, dims, args):
    """Members of vmap become samples: (V, B, ...) as (V * B, ...), and (V, G, n) of v as (V * G, n)."""
    return [
        (x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)
        for x, dim in zip(args, dims, strict=True)
    ]


def _unfolded(info, results):
    members = tuple(x.unflatten(0, (info.batch_size, -1)) for x in results)
    return members, (0,) * len(members)


class GatherAttention(torch.autograd.Function):
    @staticmethod
    def forward(q, u, h, idx, v, dot, weights):
        return tuple(_operators.gather_attention.default(q, u, h, idx, v, dot, True, weights))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.dot, _ = inputs
        _, lse, *weights = output
        ctx.mark_non_differentiable(lse, *weights)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, lse)

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return (None,) * 7
        backward = GatherAttentionBackward.apply if transformed() else GatherAttentionBackward.forward
        dq, du, dh, dv = backward(grad, *ctx.saved_tensors, ctx.dot)
        return dq, du, dh, None, dv, None, None

    @staticmethod
    def vmap(info, dims, *args):
        *tensors, dot, weights = args
        return _unfolded(info, GatherAttention.apply(*_folded(info, dims[:5], tensors), dot, weights))


_apply = applied(GatherAttention, "gather_attention")


class GatherAttentionBackward(torch.autograd.Function):
    """The backward for torch.func's transforms, which do not take the operator's register_autograd."""

    @staticmethod
    def forward(grad, q, u, h, idx, v, lse, dot):
        return tuple(_operators.gather_attention_backward.default(grad, q, u, h, idx, v, lse, dot))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, _, ctx.dot = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, *grads):
        grad, q, u, h, idx, v = ctx.saved_tensors
        first, dq, du, dh, dv = _differentiate_backward(ctx.dot, idx, (grad, q, u, h, v), grads)
        return first, dq, du, dh, None, dv, None, None

    @staticmethod
    def vmap(info, dims, *args):
        *tensors, dot = args
        return _unfolded(info, GatherAttentionBackward.apply(*_folded(info, dims[:7], tensors), dot))

    jvp = no_forward_mode("gather_attention")


def _differentiate_backward(dot, idx, inputs, grads):
    """The vector-Jacobian product of the backward, which is the reference's gradient."""

    def attention(q, u, h, v):
        return reference.gather_attention(q, u, h, idx, v, alignment="dot" if dot else "additive")

    def backward(upstream, *inputs):
        return torch.func.vjp(attention, *inputs)[1](upstream)

    return torch.func.vjp(backward, *inputs)[1](tuple(grads))


def _forward_shapes(q, u, h, idx, v, dot, training, weights):
    results = [q.new_empty(q.shape)]
    if training:
        results.append(q.new_empty(q.shape[:2]))
    if weights:
        results.append(q.new_empty(idx.shape))
    return results


def _backward_shapes(grad, q, u, h, idx, v, lse, dot):
    return [x.new_empty(x.shape) for x in (q, u, h, v)]


def _differentiate(ctx, grads):
    return GatherAttentionBackward.backward(ctx, *grads)


if _extension.available:
    torch.library.register_fake("rnnkern::gather_attention", _forward_shapes)
    torch.library.register_fake("rnnkern::gather_attention_backward", _backward_shapes)
    torch.library.register_autograd(
        "rnnkern::gather_attention_backward", _differentiate, setup_context=GatherAttentionBackward.setup_context
    )
