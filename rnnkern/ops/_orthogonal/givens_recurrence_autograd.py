"""Derivatives of givens_recurrence: an autograd.Function around the forward, one around the backward, and the reference
around that. Complex numbers are the real and imaginary parts of N in turns."""

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern._torch_private import is_fake
from rnnkern.ops._recurrence.complex import of_parts, state_in_parts
from rnnkern.ops._recurrence.vmap import as_sequences, one_by_one
from rnnkern.ops.transforms import applied_whole, needs_derivatives, no_forward_mode, transformed

_operators = torch.ops.rnnkern

SEQUENCES = (-2, None, None, None, None, -2, None, -1, None, None)
"""Which dimension of each argument is that of the sequences, from the end."""


def givens_recurrence(
    u: Tensor, angles: Tensor, phases: Tensor | None, diagonal: Tensor | None, bias: Tensor, h0: Tensor,
    batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool, butterfly: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """By the kernels of a device; the phases are both there or both None."""
    args = (u, angles, phases, diagonal, bias, h0, batch_sizes, reset, reverse, butterfly)
    if needs_derivatives(*args[:6]):
        return _apply(*args)
    h, last = _operators.givens_recurrence.default(*args)
    return h, last


class GivensRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(*args):
        return tuple(_operators.givens_recurrence.default(*args))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.reverse, ctx.butterfly = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[:6], output[0], *tensors[6:])

    @staticmethod
    def backward(ctx, grad_h, grad_last):
        if grad_h is None and grad_last is None:
            return (None,) * 10
        backward = GivensRecurrenceBackward.apply if transformed() else GivensRecurrenceBackward.forward
        found = backward(grad_h, grad_last, *ctx.saved_tensors, ctx.reverse, ctx.butterfly)
        return *_by_argument(found), None, None, None, None

    @staticmethod
    def vmap(info, dims, *args):
        shared = [dim is None for dim, at in zip(dims, SEQUENCES, strict=True) if at is None]
        if not all(shared) or info.batch_size == 0:
            return one_by_one(GivensRecurrence.apply, info.batch_size, dims, args)
        args = list(args)
        if args[6] is not None:
            args[6] = args[6] * info.batch_size
        return as_sequences(GivensRecurrence.apply, info.batch_size, dims, args, SEQUENCES)


_apply = applied_whole(GivensRecurrence, "givens_recurrence")


class GivensRecurrenceBackward(torch.autograd.Function):
    """The backward for torch.func's transforms, which do not take the operator's register_autograd."""

    @staticmethod
    def forward(*args):
        return tuple(_operators.givens_recurrence_backward.default(*args))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.reverse, ctx.butterfly = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, *grads):
        found = _differentiate_backward(ctx.saved_tensors, grads, ctx.reverse, ctx.butterfly)
        return *found, None, None, None, None, None

    @staticmethod
    def vmap(info, dims, *args):
        return one_by_one(GivensRecurrenceBackward.apply, info.batch_size, dims, args)  # each has its own sums

    jvp = no_forward_mode("givens_recurrence")


def _by_argument(found):
    """What the backward returns, in the order of u, angles, phases, diagonal, bias, h0."""
    to_u, to_angles, to_bias, to_h0, *to_phases = found
    return to_u, to_angles, *(to_phases or (None, None)), to_bias, to_h0


def _differentiate_backward(tensors, grads, reverse, butterfly):
    """The vector-Jacobian product of the backward, by the reference's own. Tensors are (grad_h, grad_last, u, angles,
    phases, diagonal, bias, h0, h, batch_sizes, reset); h follows from the others."""
    *tensors, _, batch_sizes, reset = tensors
    if batch_sizes is not None and is_fake(batch_sizes):
        raise NotImplementedError(
            "givens_recurrence: second derivatives of packed input cannot be traced by the compiler, since they read "
            "the lengths; call outside torch.compile, or pad and mask"
        )
    there = [k for k, x in enumerate(tensors) if x is not None]
    options = {"batch_sizes": batch_sizes, "reset": reset, "reverse": reverse}
    style = "butterfly" if butterfly else "tunable"
    u, h0 = tensors[2], tensors[7]

    def forward(*given):
        x, angles, *phases, bias, state = given
        if not phases:
            return reference.givens_recurrence(x, angles, state, bias, style=style, **options)
        turns = dict(zip(("phases", "diagonal_phases"), phases, strict=True))
        x, state = of_parts(x), of_parts(state)
        return tuple(map(state_in_parts, reference.givens_recurrence(x, angles, state, bias, **turns, style=style,
                                                                     **options)))  # fmt: skip

    def backward(*given):
        given = dict(zip(there, given, strict=True))
        upstream = given.get(0, torch.zeros_like(u)), given.get(1, torch.zeros_like(h0))
        found = torch.func.vjp(forward, *(given[k] for k in there if k > 1))[1](upstream)
        to_u, to_angles, *to_phases, to_bias, to_h0 = found
        return to_u, to_angles, to_bias, to_h0, *to_phases

    results, pull = torch.func.vjp(backward, *(tensors[k] for k in there))
    grads = [torch.zeros_like(y) if g is None else g for y, g in zip(results, grads, strict=True)]
    found = dict(zip(there, pull(tuple(grads)), strict=True))
    return [found.get(k) for k in range(len(tensors))]


def _forward_shapes(u, angles, phases, diagonal, bias, h0, *rest):
    return [u.new_empty(u.shape), h0.new_empty(h0.shape)]


def _backward_shapes(grad_h, grad_last, u, angles, phases, diagonal, bias, h0, *rest):
    there = (u, angles, bias, h0, *((phases, diagonal) if phases is not None else ()))
    return [x.new_empty(x.shape) for x in there]


def _differentiate(ctx, grads):
    return GivensRecurrenceBackward.backward(ctx, *grads)


if _extension.available:
    torch.library.register_fake("rnnkern::givens_recurrence", _forward_shapes)
    torch.library.register_fake("rnnkern::givens_recurrence_backward", _backward_shapes)
    torch.library.register_autograd(
        "rnnkern::givens_recurrence_backward", _differentiate, setup_context=GivensRecurrenceBackward.setup_context
    )
