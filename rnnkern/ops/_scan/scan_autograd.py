"""Derivatives of linear_scan: an autograd.Function around the forward, one around the backward, and the reference
around that."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern._torch_private import is_fake
from rnnkern.ops._recurrence.vmap import one_by_one
from rnnkern.ops.transforms import applied_whole, needs_derivatives, no_forward_mode, transformed

_operators = torch.ops.rnnkern


def linear_scan(
    a: Tensor, x: Tensor, h0: Tensor | None, batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool,
    sequence: bool,
) -> tuple[Tensor | None, Tensor]:  # fmt: skip
    """By the kernels of its device. ``h0`` is there where ``batch_sizes`` is."""
    if needs_derivatives(a, x, h0):
        args = (a, x, h0, batch_sizes, reset, reverse)
        return _apply(*args)
    *h, last = _operators.linear_scan.default(a, x, h0, batch_sizes, reset, reverse, sequence)
    return h[0] if sequence else None, last


def over_channels(function, info, dims, args, shared: Sequence[int]):
    """Members of vmap become channels, (..., C) of each as (..., V * C); ``shared`` says which of ``args`` have none.
    Where one of those differs from member to member, each is a call."""
    if any(dims[k] is not None for k in shared):
        return one_by_one(function, info.batch_size, dims, args)

    def fold(x, dim):
        spread = x.unsqueeze(-2) if dim is None else x.movedim(dim, -2)
        return spread.expand(*spread.shape[:-2], info.batch_size, -1).flatten(-2)

    folded = [
        x if k in shared or not isinstance(x, Tensor) else fold(x, dim)
        for k, (x, dim) in enumerate(zip(args, dims, strict=True))
    ]
    results = [x.unflatten(-1, (info.batch_size, x.shape[-1] // info.batch_size)) for x in function(*folded)]
    return tuple(results), tuple(x.dim() - 2 for x in results)


class LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(a, x, h0, batch_sizes, reset, reverse):
        return tuple(_operators.linear_scan.default(a, x, h0, batch_sizes, reset, reverse, True))

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, _, h0, batch_sizes, reset, ctx.reverse = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a, h0, output[0], batch_sizes, reset)

    @staticmethod
    def backward(ctx, grad_h, grad_last):
        if grad_h is None and grad_last is None:
            return (None,) * 6
        backward = LinearScanBackward.apply if transformed() else LinearScanBackward.forward
        dx, dh0, *da = backward(grad_h, grad_last, *ctx.saved_tensors, ctx.reverse, ctx.needs_input_grad[0])
        return *(da or [None]), dx, dh0 if ctx.needs_input_grad[2] else None, None, None, None

    @staticmethod
    def vmap(info, dims, *args):
        return over_channels(LinearScan.apply, info, dims, args, shared=(3, 4))


_apply = applied_whole(LinearScan, "linear_scan")


class LinearScanBackward(torch.autograd.Function):
    """The backward for torch.func's transforms, which do not take the operator's register_autograd."""

    @staticmethod
    def forward(grad_h, grad_last, a, h0, h, batch_sizes, reset, reverse, needs_a):
        args = (grad_h, grad_last, a, h0, h, batch_sizes, reset, reverse, needs_a)
        return tuple(_operators.linear_scan_backward.default(*args))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.reverse, _ = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, *grads):
        *tensors, batch_sizes, reset = ctx.saved_tensors
        found = _differentiate_backward(tensors, grads, batch_sizes, reset, ctx.reverse)
        return *found, None, None, None, None

    @staticmethod
    def vmap(info, dims, *args):
        return over_channels(LinearScanBackward.apply, info, dims, args, shared=(5, 6))

    jvp = no_forward_mode("linear_scan")


def _differentiate_backward(tensors, grads, batch_sizes, reset, reverse):
    """The vector-Jacobian product of the backward, by the reference. Tensors are (grad_h, grad_last, a, h0, h), of
    which all but a and h may be missing: they were zero."""
    if batch_sizes is not None and is_fake(batch_sizes):
        raise NotImplementedError(
            "linear_scan: second derivatives of packed input cannot be traced by the compiler, since they read the "
            "lengths; call outside torch.compile, or pad and mask"
        )
    h0, h = tensors[3:]
    there = [k for k, x in enumerate(tensors) if x is not None]
    state = h.new_zeros(h0.shape if h0 is not None else h.shape[1:])
    zeros = (torch.zeros_like(h), state, None, state, None)

    def backward(*given):
        given = dict(zip(there, given, strict=True))
        full = [given.get(k, zero) for k, zero in enumerate(zeros)]
        return reference.linear_scan_backward(*full, batch_sizes=batch_sizes, reset=reset, reverse=reverse)[
            : len(grads)
        ]

    given = [tensors[k] for k in there]
    results, pull = torch.func.vjp(backward, *given)
    grads = [torch.zeros_like(y) if g is None else g for y, g in zip(results, grads, strict=True)]
    found = dict(zip(there, pull(tuple(grads)), strict=True))
    return [found.get(k) for k in range(len(tensors))]


def _forward_shapes(a, x, h0, batch_sizes, reset, reverse, sequence):
    return [*([x.new_empty(x.shape)] if sequence else []), x.new_empty(x.shape[1:] if h0 is None else h0.shape)]


def _backward_shapes(grad_h, grad_last, a, h0, h, batch_sizes, reset, reverse, needs_a):
    state = h.new_empty(h.shape[1:] if h0 is None else h0.shape)
    return [h.new_empty(h.shape), state, *([a.new_empty(a.shape)] if needs_a else [])]


def _differentiate(ctx, grads):
    return LinearScanBackward.backward(ctx, *grads)


if _extension.available:
    torch.library.register_fake("rnnkern::linear_scan", _forward_shapes)
    torch.library.register_fake("rnnkern::linear_scan_backward", _backward_shapes)
    torch.library.register_autograd(
        "rnnkern::linear_scan_backward", _differentiate, setup_context=LinearScanBackward.setup_context
    )
