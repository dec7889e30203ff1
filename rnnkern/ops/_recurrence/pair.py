"""Two recurrences in one call, which the CPU kernels can run concurrently: both directions of a layer, or two stacked
layers."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops._recurrence.autograd import gradients, in_order
from rnnkern.ops._recurrence.recurrence import recurrence
from rnnkern.ops.dispatch import Choice
from rnnkern.ops.transforms import (
    can_hand_out,
    gradients_taken_back,
    hand_out,
    needs_derivatives,
    take_back,
    transformed,
)

_operators = torch.ops.rnnkern

Result = tuple[Tensor, tuple[Tensor, ...]]
"""h and the final state."""

EACH = ("weight_ih", "bias_ih", "R", "bias", "reset")
"""Arguments that each recurrence has separately, before its state and params. An optional one is given for both
recurrences or for neither."""

OTHERS = ("state", "params", "batch_sizes", "save_gates")


def recurrence_bidirectional(
    cell: str, x: Tensor, forward: Mapping[str, Any], backward: Mapping[str, Any]
) -> tuple[Result, Result]:
    r"""Runs a recurrent cell over a sequence in both directions, each with its own weights.

    It is equivalent to two calls of :func:`recurrence` and raises the same errors::

        recurrence(cell, x, **forward), recurrence(cell, x, **backward, reverse=True)

    On a CPU with at least two threads, both directions run concurrently, each on half of the threads, and neither waits
    for the other. The conditions are: ``weight_ih`` is given; ``grad_scale``, ``zoneout``, ``dropout`` and ``keep`` are
    not used; and both directions have equal sizes, the same ``batch_sizes`` and ``save_gates``, and the same optional
    tensors. Otherwise the function makes two calls: also on other devices, if :func:`rnnkern.use` forces the reference,
    with one thread, under the transforms of ``torch.func`` and in compiled code. Second derivatives are those of
    :func:`recurrence`.

    Args:
        cell: as in :func:`recurrence`.
        x: (T, B, I), or packed (sum of ``batch_sizes``, I).
        forward, backward: dicts with the other arguments of :func:`recurrence` except ``reverse``: ``weight_ih``,
            ``R``, ``state`` and the optional arguments.

    Returns:
        For each direction a tuple of h, shaped like ``x`` with H columns, and the final state. Both h are in the time
        order of ``x``.

    Raises:
        ValueError, TypeError, NotImplementedError: as :func:`recurrence`.

    >>> x, h0 = torch.randn(5, 2, 4), torch.zeros(2, 3)
    >>> one, other = ({"weight_ih": torch.randn(9, 4), "R": torch.randn(9, 3), "state": (h0,)} for _ in range(2))
    >>> (h, _), (h_reverse, _) = recurrence_bidirectional("gru", x, one, other)
    >>> torch.cat([h, h_reverse], dim=-1).shape
    torch.Size([5, 2, 6])
    """
    calls = _pair(cell, False, x, forward, backward)
    if calls is None:
        return recurrence(cell, x, **forward), recurrence(cell, x, **backward, reverse=True)
    return _apply(cell, False, x, calls)


def recurrence_stacked(
    cell: str, x: Tensor, lower: Mapping[str, Any], upper: Mapping[str, Any]
) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    r"""Runs two stacked layers of a recurrent cell. The second layer reads h of the first.

    It is equivalent to two calls of :func:`recurrence` and raises the same errors::

        h, lower_state = recurrence(cell, x, **lower)
        h, upper_state = recurrence(cell, h, **upper)

    Under the conditions of :func:`recurrence_bidirectional`, one operator computes both layers. With an even number of
    threads, few sequences (fewer than four per thread) of many steps, and at most 256 KB of R, the layers run
    concurrently, each on half of the threads: the second follows the first by some steps, and in the backward pass the
    first follows the second.

    Args:
        cell: as in :func:`recurrence`.
        x: (T, B, I), or packed (sum of ``batch_sizes``, I).
        lower, upper: dicts with the other arguments of :func:`recurrence` except ``reverse``.

    Returns:
        h of the second layer, shaped like ``x`` with H columns, and the final states of the first and of the second
        layer.

    Raises:
        ValueError, TypeError, NotImplementedError: as :func:`recurrence`.

    >>> x, h0 = torch.randn(5, 2, 4), torch.zeros(2, 3)
    >>> lower = {"weight_ih": torch.randn(9, 4), "R": torch.randn(9, 3), "state": (h0,)}
    >>> upper = {"weight_ih": torch.randn(9, 3), "R": torch.randn(9, 3), "state": (h0,)}
    >>> h, lower_state, upper_state = recurrence_stacked("gru", x, lower, upper)
    >>> h.shape, torch.equal(h[-1], upper_state[0])
    (torch.Size([5, 2, 3]), True)
    """
    calls = _pair(cell, True, x, lower, upper)
    if calls is None:
        h, lower_state = recurrence(cell, x, **lower)
        h, upper_state = recurrence(cell, h, **upper)
    else:
        (_, lower_state), (h, upper_state) = _apply(cell, True, x, calls)
    return h, lower_state, upper_state


def _pair(cell, stacked, x, first, second) -> list[dict[str, Any]] | None:
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
    if recurrence._choose(cell, x, **first).implementation != "cpu":
        return None
    _choose_second(cell, stacked, x, first, second)  # it checks the arguments of the second recurrence
    one, other = calls
    shapes = ([None if t is None else t.shape for t in (*map(c.get, EACH[1:]), c["state"][0])] for c in calls)
    alike = one["batch_sizes"] is other["batch_sizes"] and one["save_gates"] == other["save_gates"]
    projected = one["weight_ih"] is not None and other["weight_ih"] is not None
    return calls if alike and projected and next(shapes) == next(shapes) else None


def _choose_second(cell, stacked, x, first, second) -> Choice:
    if stacked:  # the second layer's input, h of the first, does not exist yet
        x = x.new_empty(1).expand(*x.shape[:-1], first["state"][0].shape[-1])
    return recurrence._choose(cell, x, **second, reverse=not stacked)


def _choose_both(stacked, how, cell, x, first, second) -> list[Choice]:
    choices = [recurrence._choose(cell, x, **first), _choose_second(cell, stacked, x, first, second)]
    if _pair(cell, stacked, x, first, second) is None:
        return choices
    return [choice._replace(reason=f"{choice.reason}, {how}") for choice in choices]


recurrence_bidirectional._choose = partial(_choose_both, False, "side by side with the other direction")
recurrence_stacked._choose = partial(_choose_both, True, "in one call with the other layer")


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
    whether both h are handed out, see :func:`rnnkern.ops.transforms.hand_out`)."""

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
