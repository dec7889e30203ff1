"""Derivatives of moment_filter: an autograd.Function around the forward, one around the backward, and the reference
around that."""

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern._torch_private import is_fake
from rnnkern.ops._scan.scan_autograd import over_channels
from rnnkern.ops.transforms import applied_whole, needs_derivatives, no_forward_mode, transformed

EVERY = 16
"""Steps from one state that is kept to the next (csrc/scan/problem.h has the most): the backward makes v and q between
them again."""

_operators = torch.ops.rnnkern


def moment_filter(
    u: Tensor, v0: Tensor | None, q0: Tensor | None, batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool,
    mu: float, s: float, beta: float | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """By the kernels of its device. ``v0`` is there where ``batch_sizes`` is."""
    args = (u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps)
    if needs_derivatives(u, v0, q0):
        y, v, *rest = _apply(*args)
    else:
        y, v, *rest = _operators.moment_filter.default(*args, 0)
    return y, v, rest[0] if rest else None


class MomentFilter(torch.autograd.Function):
    @staticmethod
    def forward(u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps):
        every = 0 if beta is None else EVERY
        args = (u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps, every)
        return tuple(_operators.moment_filter.default(*args))

    @staticmethod
    def setup_context(ctx, inputs, output):
        u, v0, q0, batch_sizes, reset, *ctx.rule = inputs
        ctx.set_materialize_grads(False)
        kept = None
        if len(output) == 4:
            kept = output[3]
            ctx.mark_non_differentiable(kept)
        ctx.shape, ctx.dtype = u.shape, u.dtype
        ctx.save_for_backward(None if kept is None else u, v0, q0, kept, batch_sizes, reset)

    @staticmethod
    def backward(ctx, grad_y, grad_v, grad_q=None, _=None):
        if grad_y is None and grad_v is None and grad_q is None:
            return (None,) * 10
        u, *saved = ctx.saved_tensors
        if u is None:  # of momentum alone, which asks for no more of u than its sizes
            u = grad_v.new_zeros(ctx.shape, dtype=ctx.dtype) if grad_y is None else grad_y.detach()
        backward = MomentFilterBackward.apply if transformed() else MomentFilterBackward.forward
        du, dv0, *dq0 = backward(grad_y, grad_v, grad_q, u, *saved, *ctx.rule, EVERY)
        dq0 = dq0[0] if dq0 and ctx.needs_input_grad[2] else None
        return du, dv0 if ctx.needs_input_grad[1] else None, dq0, *[None] * 7

    @staticmethod
    def vmap(info, dims, *args):
        return over_channels(MomentFilter.apply, info, dims, args, shared=(3, 4))


_apply = applied_whole(MomentFilter, "moment_filter")


class MomentFilterBackward(torch.autograd.Function):
    """The backward for torch.func's transforms, which do not take the operator's register_autograd."""

    @staticmethod
    def forward(grad_y, grad_v, grad_q, u, v0, q0, kept, batch_sizes, reset, reverse, mu, s, beta, eps, every):
        args = (grad_y, grad_v, grad_q, u, v0, q0, kept, batch_sizes, reset, reverse, mu, s, beta, eps, every)
        return tuple(_operators.moment_filter_backward.default(*args))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, _, batch_sizes, reset, ctx.reverse, ctx.mu, ctx.s, ctx.beta, ctx.eps, _ = inputs
        ctx.save_for_backward(*tensors, batch_sizes, reset)

    @staticmethod
    def backward(ctx, *grads):
        *tensors, batch_sizes, reset = ctx.saved_tensors
        rule = {"mu": ctx.mu, "s": ctx.s, "beta": ctx.beta, "eps": ctx.eps}
        layout = {"batch_sizes": batch_sizes, "reset": reset, "reverse": ctx.reverse}
        return *_differentiate_backward(tensors, grads, **rule, **layout), *[None] * 9

    @staticmethod
    def vmap(info, dims, *args):
        return over_channels(MomentFilterBackward.apply, info, dims, args, shared=(7, 8))

    jvp = no_forward_mode("moment_filter")


def _differentiate_backward(tensors, grads, **options):
    """The vector-Jacobian product of the backward, which is the reference's gradient. Tensors are (grad_y, grad_v,
    grad_q, u, v0, q0), of which all but u may be missing: they were zero."""
    if options["batch_sizes"] is not None and is_fake(options["batch_sizes"]):
        raise NotImplementedError(
            "moment_filter: second derivatives of packed input cannot be traced by the compiler, since they read the "
            "lengths; call outside torch.compile, or pad and mask"
        )
    *_, u, v0, _ = tensors
    there = [k for k, x in enumerate(tensors) if x is not None]
    wide = u if u.dtype == torch.float64 else u.float()
    state = wide.new_zeros(v0.shape if v0 is not None else u.shape[1:])
    squares = options["beta"] is not None

    def forward(u, v0, q0):
        return reference.moment_filter(u, v0, q0 if squares else None, **options)[: 2 + squares]

    def backward(*given):
        full = [wide * 0, state, state, wide, state, state]
        for k, x in zip(there, given, strict=True):
            full[k] = x.to(wide)
        return torch.func.vjp(forward, *full[3:])[1](tuple(full[: 2 + squares]))[: len(grads)]

    results, pull = torch.func.vjp(backward, *(tensors[k] for k in there))
    upstream = tuple(torch.zeros_like(x) if g is None else g.to(x) for x, g in zip(results, grads, strict=True))
    found = dict(zip(there, pull(upstream), strict=True))
    return [found.get(k) for k in range(len(tensors))]


def _states(u, v0, beta):
    """v, and with beta q."""
    wide = u.dtype if u.dtype == torch.float64 else torch.float32
    return [u.new_empty(u.shape[1:] if v0 is None else v0.shape, dtype=wide) for _ in range(1 if beta is None else 2)]


def _forward_shapes(u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps, every):
    v, *q = _states(u, v0, beta)
    results = [u.new_empty(u.shape), v, *q]
    if q and every:
        steps = u.shape[0] if batch_sizes is None else batch_sizes.shape[0]
        results.append(v.new_empty(torch.sym_max((steps - 1) // every, 0), 2, *v.shape))
    return results


def _backward_shapes(grad_y, grad_v, grad_q, u, v0, q0, kept, batch_sizes, reset, reverse, mu, s, beta, eps, every):
    return [u.new_empty(u.shape), *_states(u, v0, beta)]


def _differentiate(ctx, grads):
    return MomentFilterBackward.backward(ctx, *grads)


if _extension.available:
    torch.library.register_fake("rnnkern::moment_filter", _forward_shapes)
    torch.library.register_fake("rnnkern::moment_filter_backward", _backward_shapes)
    torch.library.register_autograd(
        "rnnkern::moment_filter_backward", _differentiate, setup_context=MomentFilterBackward.setup_context
    )
