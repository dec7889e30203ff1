"""Both directions of a bidirectional layer at once, where the CPU kernels can run them side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops.dispatch import Choice
from rnnkern.ops.recurrence import recurrence
from rnnkern.ops.recurrence_autograd import gradients, in_order, needs_derivatives, transformed

_operators = torch.ops.rnnkern

Result = tuple[Tensor, tuple[Tensor, ...]]
"""h and the final state."""

EACH = ("weight_ih", "bias_ih", "R", "bias", "reset")
"""What each direction has of its own, before its state and params. The optional ones are both there or both None."""

OTHERS = ("state", "params", "batch_sizes", "save_gates")

NO_NOISE = (0.0, 0.0, 0.0)


def recurrence_bidirectional(
    cell: str, x: Tensor, forward: Mapping[str, Any], backward: Mapping[str, Any]
) -> tuple[Result, Result]:
    r"""Runs a recurrent cell over a sequence in both directions, each with its own weights.

    It equals two calls of :func:`recurrence`, and takes and raises what they do::

        recurrence(cell, x, **forward), recurrence(cell, x, **backward, reverse=True)

    On a CPU with at least two threads both run at the same time, by half of the threads each, and no thread waits for
    the other direction. This is so for calls with ``weight_ih``, without ``grad_scale``, ``zoneout`` and ``dropout``,
    of equal sizes, with the same ``batch_sizes`` and ``save_gates``, and with the same optional tensors in both
    directions. All else is two calls: on other devices and under :func:`rnnkern.use` of the reference, with one
    thread, under the transforms of ``torch.func`` and in compiled code. Second derivatives are those of
    :func:`recurrence`.

    Args:
        cell: as in :func:`recurrence`.
        x: (T, B, I), or packed (sum of ``batch_sizes``, I).
        forward, backward: the other arguments of :func:`recurrence` by name, ``reverse`` apart: ``weight_ih``, ``R``,
            ``state`` and what is optional.

    Returns:
        For each direction h, like ``x`` with H columns, and the final state. Both are in the order of ``x``.

    Raises:
        ValueError, TypeError, NotImplementedError: as :func:`recurrence`.

    >>> x, h0 = torch.randn(5, 2, 4), torch.zeros(2, 3)
    >>> one, other = ({"weight_ih": torch.randn(9, 4), "R": torch.randn(9, 3), "state": (h0,)} for _ in range(2))
    >>> (h, _), (h_reverse, _) = recurrence_bidirectional("gru", x, one, other)
    >>> torch.cat([h, h_reverse], dim=-1).shape
    torch.Size([5, 2, 6])
    """
    calls = _side_by_side(cell, x, forward, backward)
    if calls is None:
        return recurrence(cell, x, **forward), recurrence(cell, x, **backward, reverse=True)
    tensors = [t for call in calls for t in (*map(call.get, EACH), *call["state"], *call["params"])]
    states, batch_sizes = len(calls[0]["state"]), calls[0]["batch_sizes"]
    if needs_derivatives(x, *tensors):
        save_gates = calls[0]["save_gates"] is not False
        results = RecurrencePair.apply(cell, save_gates, states, x, batch_sizes, *tensors)
    else:
        results = _run(cell, False, False, states, x, batch_sizes, tensors)
    one, other = ((h, tuple(rest[:states])) for h, *rest in _halves(results))
    return one, other


def _side_by_side(cell, x, forward, backward) -> list[dict[str, Any]] | None:
    """The written rule: the arguments of both calls, checked and with defaults, or None where they are two calls."""
    if torch.compiler.is_compiling() or transformed() or torch.get_num_threads() < 2:
        return None
    if not isinstance(x, Tensor) or not x.is_cpu:
        return None
    defaults = recurrence.__kwdefaults__
    calls = [{**defaults, **forward}, {**defaults, **backward}]
    rest = [(value, defaults.get(name)) for c in calls for name, value in c.items() if name not in EACH + OTHERS]
    if any(value is not default and (isinstance(value, Tensor) or value != default) for value, default in rest):
        return None
    if recurrence.choose(cell, x, **forward).implementation != "cpu":
        return None
    recurrence.choose(cell, x, **backward, reverse=True)  # for its checks
    one, other = calls
    shapes = ([None if t is None else t.shape for t in (*map(c.get, EACH), c["state"][0])] for c in calls)
    alike = one["batch_sizes"] is other["batch_sizes"] and one["save_gates"] == other["save_gates"]
    return calls if alike and one["weight_ih"] is not None and next(shapes) == next(shapes) else None


def _choose_both(cell, x, forward, backward) -> list[Choice]:
    choices = [recurrence.choose(cell, x, **forward), recurrence.choose(cell, x, **backward, reverse=True)]
    if _side_by_side(cell, x, forward, backward) is None:
        return choices
    return [choice._replace(reason=f"{choice.reason}, side by side with the other direction") for choice in choices]


recurrence_bidirectional.choose = _choose_both


# ---- the operators: lists hold the forward direction's tensors and then as many of the other


def _halves(both: Sequence) -> tuple[Sequence, Sequence]:
    middle = len(both) // 2
    return both[:middle], both[middle:]


def _lists(states, tensors):
    """[weight_ih, bias_ih, R, bias, reset, state, params] of both directions."""
    halves = _halves(tensors)
    each = [list(two) if two[0] is not None else None for two in zip(*halves, strict=True)][: len(EACH)]
    state, params = slice(len(EACH), len(EACH) + states), slice(len(EACH) + states, None)
    return [*each, *([t for half in halves for t in half[part]] for part in (state, params))]


def _run(cell, training, save_gates, states, x, batch_sizes, tensors):
    weight_ih, bias_ih, R, bias, reset, state, params = _lists(states, tensors)
    return _operators.recurrence_bidirectional.default(
        cell, x, R, state, bias, params or None, batch_sizes, reset, training, save_gates, weight_ih, bias_ih
    )


class RecurrencePair(torch.autograd.Function):
    """Not for transforms. Its backward may be under one, or be differentiated again: then it is that of the directions
    one by one."""

    @staticmethod
    def forward(cell, save_gates, states, x, batch_sizes, *tensors):
        return tuple(_run(cell, True, save_gates, states, x, batch_sizes, tensors))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.cell, _, ctx.states, *tensors = inputs
        kept = [(half[0], *half[1 + ctx.states :]) for half in _halves(output)]
        ctx.mark_non_differentiable(*(x for half in kept for x in half[1:]))
        ctx.set_materialize_grads(False)
        ctx.inputs = len(tensors)
        ctx.save_for_backward(*tensors, *kept[0], *kept[1])

    @staticmethod
    def backward(ctx, *grads):
        grads = [half[: 1 + ctx.states] for half in _halves(grads)]
        used = [any(g is not None for g in half) for half in grads]
        if not any(used):
            return (None,) * (3 + ctx.inputs)
        x, batch_sizes, *tensors = ctx.saved_tensors[: ctx.inputs]
        kept = _halves(ctx.saved_tensors[ctx.inputs :])
        needs = [(ctx.needs_input_grad[3], *half[:4]) for half in _halves(ctx.needs_input_grad[5:])]
        if all(used) and not torch.is_grad_enabled() and not transformed():
            both = _both_gradients(ctx.cell, ctx.states, x, batch_sizes, tensors, kept, needs, grads)
        else:
            both = [
                _gradients(ctx.cell, k == 1, ctx.states, x, batch_sizes, own, kept[k], needs[k], grads[k])
                if used[k]
                else ([None] * 5, [None] * (len(own) - len(EACH)))
                for k, own in enumerate(_halves(tensors))
            ]
        ((dx, *first), rest), ((dx_reverse, *first_reverse), rest_reverse) = both
        if dx_reverse is not None:
            dx = dx_reverse if dx is None else dx + dx_reverse
        return (None, None, None, dx, None, *first, None, *rest, *first_reverse, None, *rest_reverse)


def _gradients(cell, reverse, states, x, batch_sizes, tensors, kept, needs, grads):
    weight_ih, bias_ih, R, bias, reset, *rest = tensors
    call = (x, weight_ih, bias_ih, R, bias, batch_sizes, reset, None, None, *rest, *kept)
    return gradients(cell, reverse, states, NO_NOISE, call, needs, grads)


def _both_gradients(cell, states, x, batch_sizes, tensors, kept, needs, grads):
    weight_ih, bias_ih, R, bias, reset, state, params = _lists(states, tensors)
    (grad_h, *grad_state), (grad_h_reverse, *grad_state_reverse) = grads
    grad_state += grad_state_reverse
    if all(g is None for g in grad_state):
        grad_state = []
    grad_state = [torch.zeros_like(s) if g is None else g for g, s in zip(grad_state, state, strict=False)]
    needs_x, needs_weight_ih, needs_bias_ih, needs_R, needs_bias = map(any, zip(*needs, strict=True))
    results = _operators.recurrence_bidirectional_backward.default(
        cell, grad_h, grad_h_reverse, grad_state, x, R, state, bias, params or None, batch_sizes, reset,
        [half[0] for half in kept], [s for half in kept for s in half[1:]], weight_ih, bias_ih,
        needs_x, needs_R, needs_bias, needs_weight_ih, needs_bias_ih,
    )  # fmt: skip
    one, other = (in_order(half, need, True) for half, need in zip(_halves(results), needs, strict=True))
    if needs_x:
        one[0][0].add_(other[0][0])
        other[0][0] = None
    return one, other


def _forward_shapes(cell, u, R, state, bias, params, batch_sizes, reset, training, save_gates, weight_ih,
                    bias_ih):  # fmt: skip
    one, other = (
        _operators.recurrence.default(
            cell, u, R[k], _halves(state)[k], None, None, batch_sizes, None, k == 1, training, save_gates, weight_ih[k]
        )
        for k in (0, 1)
    )
    return one + other


def _backward_shapes(cell, grad_h, grad_h_reverse, grad_state, u, R, state, bias, params, batch_sizes, reset, h, saved,
                     weight_ih, bias_ih, needs_u, needs_R, needs_bias, needs_weight_ih, needs_bias_ih):  # fmt: skip
    one, other = (
        _operators.recurrence_backward.default(
            cell, None, [], u, R[k], _halves(state)[k], None, _halves(params or [])[k], batch_sizes, None, k == 1, None,
            h[k], _halves(saved)[k], needs_R, needs_bias, weight_ih[k], bias_ih and bias_ih[k], needs_u,
            needs_weight_ih, needs_bias_ih, *NO_NOISE, None,
        )
        for k in (0, 1)
    )  # fmt: skip
    return one + other


if _extension.available:
    torch.library.register_fake("rnnkern::recurrence_bidirectional", _forward_shapes)
    torch.library.register_fake("rnnkern::recurrence_bidirectional_backward", _backward_shapes)
