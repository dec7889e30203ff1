"""Two recurrences in one call, which CPU kernels can run concurrently: both directions of a layer, or two layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops._recurrence.autograd import gradients, in_order
from rnnkern.ops._recurrence.recurrence import recurrence
from rnnkern.ops.differentiable import (
    can_hand_out,
    gradients_taken_back,
    hand_out,
    needs_derivatives,
    take_back,
    transformed,
)
from rnnkern.ops.dispatch import Choice

_operators = torch.ops.rnnkern

Result = tuple[Tensor, tuple[Tensor, ...]]
"""h and the final state."""

EACH = ("weight_ih", "bias_ih", "R", "bias", "reset")
"""Arguments that each recurrence has separately, before its state and params. An optional one is given for both
recurrences or for neither."""

OTHERS = ("state", "params", "batch_sizes", "save_gates")


def both(
    cell: str, x: Tensor, first: Mapping[str, Any], second: Mapping[str, Any], *, stacked: bool
) -> tuple[Result, Result] | tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Runs both directions of a layer, or with ``stacked`` two layers, of which the second reads h of the first.

    It is equivalent to two calls of :func:`recurrence` and raises the same errors::

        recurrence(cell, x, **first), recurrence(cell, x, **second, reverse=True)  # both directions
        recurrence(cell, x, **first), recurrence(cell, h, **second)  # layers; h is that of the first

    On a CPU with at least two threads, one operator computes both. The conditions are: ``weight_ih`` is given;
    ``grad_scale``, ``zoneout``, ``dropout`` and ``keep`` are not used; and both recurrences have equal sizes, the same
    ``batch_sizes`` and ``save_gates``, and the same optional tensors. Otherwise the function makes two calls: also on
    other devices, if :func:`rnnkern.use` forces the reference, with one thread, under the transforms of ``torch.func``
    and in compiled code. Second derivatives are those of :func:`recurrence`.

    Directions run concurrently, each on half of the threads, and neither waits for the other. Layers do so with an even
    number of threads, few sequences (fewer than four per thread) of many steps, and at most 256 KB of R: the second
    follows the first by some steps, and in the backward pass the first follows the second.

    Args:
        cell: as in :func:`recurrence`.
        x: (T, B, I), or packed (sum of ``batch_sizes``, I).
        first, second: the other arguments of :func:`recurrence` except ``reverse``.

    Returns:
        h and the final state of each direction, with both h in the time order of ``x``; with ``stacked``, h of the
        second layer and the final states of the first and of the second layer.
    """
    calls = _pair(cell, x, first, second, stacked)
    if calls is not None:
        one, other = _apply(cell, stacked, x, calls)
    else:
        one = recurrence(cell, x, **first)
        other = recurrence(cell, one[0] if stacked else x, **second, reverse=not stacked)
    return (other[0], one[1], other[1]) if stacked else (one, other)


def _pair(cell, x, first, second, stacked) -> list[dict[str, Any]] | None:
    """The rule that decides whether one call suffices: returns the arguments of both recurrences, checked and with
    defaults, or None if two calls are needed."""
    if torch.compiler.is_compiling() or transformed() or torch.get_num_threads() < 2:
        return None
    if not isinstance(x, Tensor) or not x.is_cpu or x.is_complex():
        return None
    defaults = recurrence.__kwdefaults__
    calls = [{**defaults, **first}, {**defaults, **second}]
    rest = [(value, defaults.get(name)) for c in calls for name, value in c.items() if name not in EACH + OTHERS]
    if any(value is not default and (isinstance(value, Tensor) or value != default) for value, default in rest):
        return None
    # Choosing checks the arguments of each recurrence.
    if any(choice.implementation != "cpu" for choice in _choices(cell, x, first, second, stacked)):
        return None
    one, other = calls
    shapes = ([None if t is None else t.shape for t in (*map(c.get, EACH[1:]), c["state"][0])] for c in calls)
    alike = one["batch_sizes"] is other["batch_sizes"] and one["save_gates"] == other["save_gates"]
    projected = one["weight_ih"] is not None and other["weight_ih"] is not None
    return calls if alike and projected and next(shapes) == next(shapes) else None


def _choices(cell, x, first, second, stacked) -> list[Choice]:
    one = recurrence._choose(cell, x, **first)
    if stacked:  # the second layer's input, h of the first, does not exist yet
        x = x.new_empty(1).expand(*x.shape[:-1], first["state"][0].shape[-1])
    return [one, recurrence._choose(cell, x, **second, reverse=not stacked)]


def _choose(cell, x, first, second, *, stacked) -> list[Choice]:
    choices = _choices(cell, x, first, second, stacked)
    if _pair(cell, x, first, second, stacked) is None:
        return choices
    how = "in one call with the other layer" if stacked else "side by side with the other direction"
    return [choice._replace(reason=f"{choice.reason}, {how}") for choice in choices]


both._choose = _choose


def _apply(cell, stacked, x, calls) -> tuple[Result, Result]:
    tensors = [t for call in calls for t in (*map(call.get, EACH), *call["state"], *call["params"])]
    states, batch_sizes = len(calls[0]["state"]), calls[0]["batch_sizes"]
    parts = _extension.bfloat16_parts()
    if needs_derivatives(x, *tensors):
        saving = calls[0]["save_gates"] is not False, can_hand_out(x)
        results = RecurrencePair.apply(cell, stacked, saving, states, parts, x, batch_sizes, *tensors)
        results = results[:-2] if saving[1] else results
    else:
        results = _run(cell, stacked, False, False, states, parts, x, batch_sizes, tensors)
    one, other = ((h, tuple(rest[:states])) for h, *rest in _halves(results))
    return one, other


# ---- the operators: lists hold the tensors of the first recurrence, then those of the second


def _halves(both: Sequence) -> tuple[Sequence, Sequence]:
    middle = len(both) // 2
    return both[:middle], both[middle:]


def _lists(states, tensors):
    """[weight_ih, bias_ih, R, bias, reset, state, params] of both recurrences."""
    halves = _halves(tensors)
    each = [list(two) if two[0] is not None else None for two in zip(*halves, strict=True)][: len(EACH)]
    state, params = slice(len(EACH), len(EACH) + states), slice(len(EACH) + states, None)
    return [*each, *([t for half in halves for t in half[part]] for part in (state, params))]


def _run(cell, stacked, training, save_gates, states, parts, x, batch_sizes, tensors):
    weight_ih, bias_ih, R, bias, reset, state, params = _lists(states, tensors)
    return _operators.recurrence_pair.default(
        cell, stacked, x, R, state, bias, params or None, batch_sizes, reset, training, save_gates, weight_ih, bias_ih,
        parts,
    )  # fmt: skip


def _kept(saving, outputs):
    """Indices of the outputs that are handed out: h of both recurrences."""
    return (0, outputs // 2) if saving[1] else ()


class RecurrencePair(torch.autograd.Function):
    """Forward and backward pass of a pair, not used under transforms. If the backward pass runs under a transform or is
    differentiated again, it uses the backward passes of the two recurrences separately. For stacked layers, h of the
    first layer has a gradient of its own only in second derivatives. ``saving`` is (whether the gates are saved,
    whether both h are handed out, see :func:`rnnkern.ops.differentiable.hand_out`)."""

    @staticmethod
    def forward(cell, stacked, saving, states, parts, x, batch_sizes, *tensors):
        outputs = _run(cell, stacked, True, saving[0], states, parts, x, batch_sizes, tensors)
        return hand_out(outputs, _kept(saving, len(outputs)))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.cell, ctx.stacked, saving, ctx.states, ctx.parts, *tensors = inputs
        ctx.handed_out = _kept(saving, len(output) - 2)
        output = take_back(output, ctx.handed_out)
        kept = [(half[0], *half[1 + ctx.states :]) for half in _halves(output)]
        ctx.mark_non_differentiable(*kept[0][1:], *kept[1][1:])
        ctx.set_materialize_grads(False)
        ctx.inputs = len(tensors)
        ctx.save_for_backward(*tensors, *kept[0], *kept[1])

    @staticmethod
    def backward(ctx, *grads):
        grads = [list(half[: 1 + ctx.states]) for half in _halves(gradients_taken_back(grads, ctx.handed_out))]
        needs = [[ctx.needs_input_grad[5], *half] for half in _halves(ctx.needs_input_grad[7:])]
        used = [any(g is not None for g in half) for half in grads]
        if ctx.stacked:
            needs[1][0] = any(needs[0])
            used[0] = needs[1][0] and any(used)
        if not any(used):
            return (None,) * (5 + ctx.inputs)
        saved = ctx.saved_tensors  # read once: each access unpacks again, which checkpointing rejects
        x, batch_sizes, *tensors = saved[: ctx.inputs]
        kept = _halves(saved[ctx.inputs :])
        needs = [half[:5] for half in needs]
        call = (ctx.cell, ctx.stacked, ctx.states, ctx.parts, x, batch_sizes, tensors, kept, needs, grads)
        together = all(used) and not (ctx.stacked and grads[0][0] is not None)
        if together and not torch.is_grad_enabled() and not transformed():
            both = _both_gradients(*call)
        else:
            both = _gradients_of_each(*call, used)
        ((dx, *first), rest), ((dx_second, *second), rest_second) = both
        if dx_second is not None and not ctx.stacked:
            dx = dx_second if dx is None else dx + dx_second
        return (None, None, None, None, None, dx, None, *first, None, *rest, *second, None, *rest_second)


def _gradients_of_each(cell, stacked, states, parts, x, batch_sizes, tensors, kept, needs, grads, used):
    both = [([None] * 5, [None] * (len(own) - len(EACH))) for own in _halves(tensors)]
    for k in (1, 0):
        if used[k]:
            weight_ih, bias_ih, R, bias, reset, *rest = _halves(tensors)[k]
            u = kept[0][0] if stacked and k == 1 else x
            call = (u, weight_ih, bias_ih, R, bias, batch_sizes, reset, None, None, None, *rest, *kept[k])
            both[k] = gradients(cell, k == 1 and not stacked, states, (parts,), call, (*needs[k], True), grads[k])
            if stacked and k == 1 and used[0]:
                dh, own = both[1][0][0], grads[0][0]
                grads[0][0] = dh if own is None else own + dh
    return both


def _both_gradients(cell, stacked, states, parts, x, batch_sizes, tensors, kept, needs, grads):
    weight_ih, bias_ih, R, bias, reset, state, params = _lists(states, tensors)
    (grad_h, *grad_state), (grad_h_second, *grad_state_second) = grads
    grad_state += grad_state_second
    if all(g is None for g in grad_state):
        grad_state = []
    grad_state = [torch.zeros_like(s) if g is None else g for g, s in zip(grad_state, state, strict=False)]
    needs_x, needs_weights = needs[0][0], map(any, zip(*(half[1:] for half in needs), strict=True))
    needs_weight_ih, needs_bias_ih, needs_R, needs_bias = needs_weights
    results = _operators.recurrence_pair_backward.default(
        cell, stacked, grad_h, grad_h_second, grad_state, x, R, state, bias, params or None, batch_sizes, reset,
        [half[0] for half in kept], [s for half in kept for s in half[1:]], weight_ih, bias_ih,
        needs_x, needs_R, needs_bias, needs_weight_ih, needs_bias_ih, parts,
    )  # fmt: skip
    one, other = (in_order(half, need, True) for half, need in zip(_halves(results), needs, strict=True))
    if needs_x and not stacked:
        one[0][0].add_(other[0][0])
        other[0][0] = None
    return one, other


def _forward_shapes(cell, stacked, u, R, state, bias, params, batch_sizes, reset, training, save_gates, weight_ih,
                    bias_ih, bfloat16_parts=0):  # fmt: skip
    def one(k, x):
        return _operators.recurrence.default(
            cell, x, R[k], _halves(state)[k], None, None, batch_sizes, None, False, training, save_gates, weight_ih[k]
        )

    first = one(0, u)
    return first + one(1, first[0] if stacked else u)


def _backward_shapes(cell, stacked, grad_h, grad_h_second, grad_state, u, R, state, bias, params, batch_sizes, reset,
                     h, saved, weight_ih, bias_ih, needs_u, needs_R, needs_bias, needs_weight_ih,
                     needs_bias_ih, bfloat16_parts=0):  # fmt: skip
    one, other = (
        _operators.recurrence_backward.default(
            cell, None, [], x, R[k], _halves(state)[k], None, _halves(params or [])[k], batch_sizes, None, False, None,
            h[k], _halves(saved)[k], needs_R, needs_bias, weight_ih[k], bias_ih and bias_ih[k],
            needs_u or (stacked and k == 1), needs_weight_ih, needs_bias_ih, None, 0.0, None, None, False, True, 0,
        )
        for k, x in enumerate((u, h[0] if stacked else u))
    )  # fmt: skip
    return one + other


if _extension.available:
    torch.library.register_fake("rnnkern::recurrence_pair", _forward_shapes)
    torch.library.register_fake("rnnkern::recurrence_pair_backward", _backward_shapes)
