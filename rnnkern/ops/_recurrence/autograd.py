"""Derivatives of the recurrence: the autograd.Functions of its two passes, and the shapes for fake tensors."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops._recurrence.facts import KERNEL_CELLS, saved_by
from rnnkern.ops._recurrence.second import ReferenceBackward, differentiate_backward, push_forward_backward
from rnnkern.ops._recurrence.tangent import tangents_of
from rnnkern.ops._recurrence.vmap import over_members
from rnnkern.ops.differentiable import applied, call_backward, gradients_taken_back, hand_out, take_back, transformed
from rnnkern.reference._recurrence import cell_of

RESIDENT_CELLS = [cell for cell, facts in KERNEL_CELLS.items() if facts["resident"]]
"""Cells with CUDA kernels that keep R on chip for the whole sequence; the other cells use the stepwise kernel."""

Rates = tuple[float, ...]
"""Zoneout rates, one for each state tensor, and the dropout rate; empty if all are 0. The tuple is flat, because
torch.compile does not track nested tuples in the arguments of a Function."""

How = tuple[float, ...]
"""The bfloat16 parts of float32 factors (:func:`rnnkern._extension.bfloat16_parts`), followed by :data:`Rates`."""

WEIGHTS = ("weight_ih", "bias_ih", "R", "bias")

_operators = torch.ops.rnnkern


def operator_rates(rates: Rates) -> tuple[tuple[float, ...] | None, float]:
    """Zoneout and dropout rates in the form that the operators take."""
    return (rates[:-1], rates[-1]) if rates else (None, 0.0)


class Recomputed(NamedTuple):
    """A value of ``save_u``: u is not saved, and second derivatives recompute it as ``function(*tensors)``."""

    function: Callable[..., Tensor]
    tensors: tuple[Tensor | None, ...]


class Recurrence(torch.autograd.Function):
    """``saving`` is (whether the gates are saved, or None if nothing is; whether u is saved; the function of a
    :class:`Recomputed` or None; the number of steps that read one u, or None; whether h is handed out, see
    :func:`rnnkern.ops.differentiable.hand_out`). ``tensors`` are the state, the params and the arguments of that
    function."""

    @staticmethod
    def forward(cell, reverse, saving, states, how, u, weight_ih, bias_ih, R, bias, batch_sizes, reset,
                grad_scale, seed, keep, *tensors):  # fmt: skip
        last, steps = states + len(cell_of(cell).params), saving[3]
        if steps is not None:
            u = u.expand(steps, *u.shape[1:])
        outputs = _operators.recurrence.default(
            cell, u, R, tensors[:states], bias, tensors[states:last] or None, batch_sizes, reset, reverse,
            saving[0] is not None, bool(saving[0]), weight_ih, bias_ih, *operator_rates(how[1:]), seed, keep, how[0],
        )  # fmt: skip
        return hand_out(outputs, _kept(saving))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.cell, ctx.reverse, saving, ctx.states, ctx.how, u, *tensors = inputs
        save_gates, save_u, ctx.recompute_u, ctx.steps, _ = saving
        ctx.handed_out = _kept(saving)
        output = take_back(output, ctx.handed_out)
        h, saved = output[0], output[1 + ctx.states :]
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)
        ctx.inputs, ctx.kept = 1 + len(tensors), len(saved)
        last = 9 + ctx.states + len(cell_of(ctx.cell).params)
        tensors, sources = tensors[:last], tensors[last:]
        ctx.sources = len(sources)
        projected = tensors[0] is not None
        # u takes as much memory as the gates. If the gates are saved, or the cell has none, no kernel reads u.
        reads_u = projected or (saved_by(ctx.cell) and not save_gates)
        ctx.save_for_backward(*sources, u if reads_u or save_u else None, *tensors, h, *saved)

    @staticmethod
    def backward(ctx, *grads):
        grads = gradients_taken_back(grads, ctx.handed_out)[: 1 + ctx.states]
        if all(g is None for g in grads):
            return (None,) * (5 + ctx.inputs)
        needs_params = any(ctx.needs_input_grad[15 + ctx.states : len(ctx.needs_input_grad) - ctx.sources])
        needs, saved = (*ctx.needs_input_grad[5:10], needs_params), ctx.saved_tensors
        sources, (u, *tensors) = saved[: ctx.sources], saved[ctx.sources :]
        if u is None and ctx.recompute_u is not None and torch.is_grad_enabled():
            u = ctx.recompute_u(*sources)
        if ctx.steps is not None:
            if not torch.is_grad_enabled():  # given one step, the operator sums the gradient over all
                u = _without_memory(ctx.cell, (1, *tensors[9].shape[:1]), tensors[2], tensors[9:]) if u is None else u
            elif u is not None:
                u = u.expand(ctx.steps, *u.shape[1:])
        first, rest = gradients(ctx.cell, ctx.reverse, ctx.states, ctx.how, (u, *tensors), needs, grads)
        if ctx.steps is not None and first[0] is not None and len(first[0]) > 1:
            first[0] = first[0].sum(0, keepdim=True)
        return (*[None] * 5, *first, *[None] * 5, *rest, *[None] * ctx.sources)

    @staticmethod
    def vmap(info, dims, *args):
        return over_members(differentiable, info, dims, args)


def _kept(saving):
    """Indices of the outputs that are handed out."""
    return (0,) if saving[4] else ()


def _saves_candidates(cell, zoneout, seed, keep):
    """Whether a training forward saves h before it was mixed with the old one, for a cell that saves nothing else."""
    mean = keep is not None or (seed is None and zoneout and zoneout[0] > 0)
    return bool(mean) and not saved_by(cell)


def _tensors_saved(cell, rates, seed, keep):
    """Number of tensors that a training forward saves, with the gates."""
    return cell_of(cell).states - 1 + bool(saved_by(cell)) + _saves_candidates(cell, rates[:-1], seed, keep)


def push_forward(ctx, *dots):
    """The jvp of :class:`Recurrence`."""
    saved = ctx.saved_tensors[ctx.sources :]
    arguments, last = saved[:10], 10 + ctx.states
    state, params = saved[10:last], saved[last : last + len(cell_of(ctx.cell).params)]
    h, *kept = saved[last + len(params) :]
    if arguments[7] is not None:
        raise NotImplementedError(
            "recurrence: forward mode with `grad_scale` is not supported: the scale changes gradients, but not h"
        )
    dots = dots[5:]
    if dots[9] is not None:
        raise ValueError("recurrence: `keep` is a constant and must not have a tangent")
    rates = ctx.how[1:]
    call = ctx.cell, ctx.reverse, rates
    if len(kept) < _tensors_saved(ctx.cell, rates, *arguments[8:]):
        _, *rest = differentiable(
            *call[:2], (True, True, None, None, False), ctx.states, ctx.how, *arguments, *state, *params
        )
        kept = rest[ctx.states :]
    h_tangent, final = tangents_of(
        *call, (*arguments[:7], *arguments[8:]), state, params, h, kept, dots[:5],
        dots[10:last], dots[last : last + len(params)],
    )  # fmt: skip
    return h_tangent, *final, *[None] * ctx.kept


differentiable = applied(Recurrence, "recurrence", push_forward)


def gradients(cell, reverse, states, how, tensors, needs, grads):
    """Gradients of (u, weight_ih, bias_ih, R, bias), None where ``needs`` is false, and of (*state, *params). The last
    of ``needs`` is that of the params. In ``tensors``, u is None if it was not saved."""
    wanted = frozenset(name for name, need in zip(("u", *WEIGHTS, "params"), needs, strict=True) if need)
    compiling = torch.compiler.is_compiling()
    once = tensors[0] is None and torch.is_grad_enabled() and not compiling  # a second backward pass raises an error
    backward = RecurrenceBackward.apply if once or transformed() else RecurrenceBackward.forward
    first, rest = in_order(
        backward(cell, reverse, wanted, states, how, *tensors, *grads), needs[:5], tensors[1] is not None
    )
    return first, rest if needs[5] else [*rest[:states], *[None] * len(rest[states:])]


def in_order(results, needs, projected):
    """The results of the backward operator in the order of :func:`gradients`."""
    du, dR, dbias, *rest = results
    dweight_ih = dbias_ih = None
    if projected:
        *rest, dweight_ih, dbias_ih = rest
    first = (du, dweight_ih, dbias_ih, dR, dbias)
    return [d if need else None for d, need in zip(first, needs, strict=True)], rest


class RecurrenceBackward(torch.autograd.Function):
    """The backward pass for the transforms of torch.func, which ignore the operator's register_autograd, and for calls
    that did not save u and therefore have no second derivative."""

    @staticmethod
    def forward(cell, reverse, wanted, states, how, u, weight_ih, bias_ih, R, bias, batch_sizes, reset, grad_scale,
                seed, keep, *tensors):  # fmt: skip
        state, params, (h, *saved), grad_h, grad_state = _parts(cell, states, tensors)
        if u is None:
            u = _without_memory(cell, h.shape[:-1], R, state)
        if all(g is None for g in grad_state):
            grad_state = ()
        grad_state = [torch.zeros_like(s) if g is None else g for g, s in zip(grad_state, state, strict=False)]
        return tuple(
            call_backward(
                _operators.recurrence_backward.default, cell, grad_h, grad_state, u, R, state, bias, params,
                batch_sizes, reset, reverse, grad_scale, h, saved,
                "R" in wanted, "bias" in wanted, weight_ih, bias_ih, "u" in wanted, "weight_ih" in wanted,
                "bias_ih" in wanted, *operator_rates(how[1:]), seed, keep, False, "params" in wanted, how[0],
            )
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.cell, ctx.reverse, _, ctx.states, (_, *ctx.rates), *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.shapes = [y.shape for y in output]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx, *grads):
        saved = ctx.saved_tensors  # read once: each access unpacks again
        tensors, rest = saved[:10], saved[10:]
        if tensors[0] is None:
            raise RuntimeError(
                "recurrence: second derivatives need `u`, which is not saved when the gates are saved: pass "
                "`save_u=True`"
            )
        state, params, saved, *upstream = _parts(ctx.cell, ctx.states, rest)
        first, upstream = differentiate_backward(
            ctx.cell, ctx.reverse, ctx.rates, tensors, state, params, (upstream[0], *upstream[1]), grads
        )
        return (*[None] * 5, *first[:5], *[None] * 5, *first[5:], *(None for _ in saved), *upstream)

    @staticmethod
    def vmap(info, dims, *args):
        wanted = args[2]
        share = wanted.isdisjoint((*WEIGHTS, "params"))
        return over_members(RecurrenceBackward.apply, info, dims, args, share)

    @staticmethod
    def jvp(ctx, *dots):
        saved = ctx.saved_tensors
        state, params, _, *upstream = _parts(ctx.cell, ctx.states, saved[10:])
        state_dots, params_dots, _, *upstream_dots = _parts(ctx.cell, ctx.states, dots[15:])
        of = ReferenceBackward(
            ctx.cell, ctx.reverse, ctx.rates, saved[:10], state, params, (upstream[0], *upstream[1])
        )  # fmt: skip
        given = dict(zip(of.names, (*dots[5:10], *state_dots, *params_dots), strict=True))
        return push_forward_backward(of, given, (upstream_dots[0], *upstream_dots[1]), ctx.shapes)


def _parts(cell, states, tensors):
    """(state, params, h and what the forward saved, grad_h, grad_state)."""
    last, first = states + len(cell_of(cell).params), len(tensors) - 1 - states
    return tensors[:states], tensors[states:last], tensors[last:first], tensors[first], tensors[first + 1 :]


def _without_memory(cell, rows, R, state):
    """A tensor with the size of u that takes no memory, for a backward pass that reads its size alone."""
    return R.new_empty(()).expand(*rows, cell_of(cell).gates * _units(cell, R, state))


def _units(cell, R, state):
    """H, which differs from the number of columns of h if h is projected."""
    facts = cell_of(cell)
    return math.prod(R.shape[:-1]) // facts.recurrent if facts.recurrent else state[0].shape[-1]


def hidden_size(cell, u, weight_ih):
    return (u.shape[-1] if weight_ih is None else weight_ih.shape[0]) // cell_of(cell).gates


def _forward_shapes(cell, u, R, state, bias, params, batch_sizes, reset, reverse, training, save_gates,
                    weight_ih=None, bias_ih=None, zoneout=None, dropout=0.0, seed=None, keep=None,
                    bfloat16_parts=0):  # fmt: skip
    hidden = hidden_size(cell, u, weight_ih)
    outputs = [u.new_empty(*u.shape[:-1], state[0].shape[1]), *(s.new_empty(s.shape) for s in state)]
    if training:
        arithmetic = torch.promote_types(u.dtype, torch.float32)
        outputs += [u.new_empty(*u.shape[:-1], hidden, dtype=arithmetic) for _ in state[1:]]
        saved = saved_by(cell)
        if (save_gates and saved) or _saves_candidates(cell, zoneout, seed, keep):
            outputs.append(u.new_empty(*u.shape[:-1], max(saved, 1) * hidden, dtype=arithmetic))
    return outputs


def _backward_shapes(cell, grad_h, grad_state, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, h,
                     saved, needs_R, needs_bias, weight_ih, bias_ih, needs_u, needs_weight_ih,
                     needs_bias_ih, zoneout, dropout, seed, keep, needs_h, needs_params, bfloat16_parts):  # fmt: skip
    hidden = hidden_size(cell, u, weight_ih)
    columns, recurrent = cell_of(cell).gates * hidden, cell_of(cell).recurrent * hidden
    outputs = [
        u.new_empty(u.shape if weight_ih is None or needs_u else (0,)),
        R.new_empty(R.shape if needs_R else (0,)),
        u.new_empty(recurrent if needs_bias else 0),
        *(x.new_empty(x.shape) for x in state),
        *(x.new_empty(x.shape if needs_params else 0) for x in params),
    ]
    if weight_ih is not None:
        outputs.append(u.new_empty(weight_ih.shape if needs_weight_ih else (0,)))
        outputs.append(u.new_empty(columns if bias_ih is not None and needs_bias_ih else 0))
    if needs_h:
        outputs.append(u.new_empty(h.shape))
    return outputs


def _setup_backward(ctx, inputs, output):
    """As in :class:`RecurrenceBackward`; the operator takes its arguments in another order."""
    (cell, grad_h, grad_state, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, h, saved, _, _,
     weight_ih, bias_ih, _, _, _, zoneout, dropout, seed, keep, ctx.needs_h, _, _) = inputs  # fmt: skip
    ctx.grad_states, grad_state = len(grad_state), grad_state or [None for _ in state]
    tensors = (u, weight_ih, bias_ih, R, bias, batch_sizes, reset, grad_scale, seed, keep, *state, *params, h, *saved)
    how = (0, *(zoneout or [0.0] * len(state)), dropout)
    inputs = (cell, reverse, None, len(state), how, *tensors, grad_h, *grad_state)
    RecurrenceBackward.setup_context(ctx, inputs, output)


def _differentiate_backward(ctx, grads):
    if ctx.needs_h and grads[-1] is not None:
        raise NotImplementedError("recurrence_backward: the gradient of h has no derivative")
    _, _, _, _, _, u, weight_ih, bias_ih, R, bias, _, _, _, _, _, *rest = RecurrenceBackward.backward(ctx, *grads)
    state, params, (_, *saved), grad_h, grad_state = _parts(ctx.cell, ctx.states, rest)
    grad_state = grad_state[: ctx.grad_states]
    return (
        None, grad_h, grad_state, u, R, state, bias, params, None, None, None, None, None, saved, None, None,
        weight_ih, bias_ih, *[None] * 10,
    )  # fmt: skip


if _extension.available:
    torch.library.register_fake("rnnkern::recurrence", _forward_shapes)
    torch.library.register_fake("rnnkern::recurrence_backward", _backward_shapes)
    torch.library.register_autograd(
        "rnnkern::recurrence_backward", _differentiate_backward, setup_context=_setup_backward
    )
