"""Derivatives of relevancy_recurrence: one autograd.Function for the forward pass, one for the backward pass, and the
reference for second derivatives, which selects the same events again."""

import torch

from rnnkern import _extension
from rnnkern.ops._relevancy.second import differentiate_backward
from rnnkern.ops.folds import one_by_one
from rnnkern.ops.transforms import (
    applied_whole,
    can_hand_out,
    gradients_taken_back,
    hand_out,
    needs_derivatives,
    no_forward_mode,
    take_back,
)
from rnnkern.reference import CELLS, RelevancyState

SAVED_GATES = {"lstm": 4}
"""Number of values per unit that a cell saves in addition to h and c (`saved` in csrc/cells/*.h), if any."""

_operators = torch.ops.rnnkern


def relevancy_recurrence(call, u, weights, state, params, batch_sizes, reset, scores, maps):
    """Calls the operator of a device, through autograd if derivatives are needed.

    Args:
        call: (cell, buffer_size, the factor of ``combine``, whether the alignment is "dot", the caller's dtype). If
            that dtype has 16 bits, tensors are float32, with weights rounded to 16 bits.
        maps: whether to return also alpha and ids, what each step attended to.

    Returns:
        h, s, the new state and a list: [alpha, ids] with ``maps``, else empty.
    """
    cell, *sizes = call
    parts = [x for x in state if x is not None]
    tensors = (*weights, *params, *parts)
    if needs_derivatives(u, *tensors) or (scores is not None and needs_derivatives(scores)):
        _, *results = _apply(call, (maps, can_hand_out(u)), u, batch_sizes, reset, scores, *tensors)
    else:
        results = _operators.relevancy_recurrence.default(
            cell, u, weights, parts, params, batch_sizes, reset, scores, *sizes, False, maps
        )
    h, s, *rest = results
    parts = rest[: len(parts)]
    last = RelevancyState(parts[0], None if state.c is None else parts[1], *parts[-7:])
    return h, s, last, rest[len(parts) : len(parts) + 2 * maps]


def _over_members(function, info, dims, args):
    if info.batch_size == 0:
        raise ValueError("relevancy_recurrence: torch.vmap needs at least one member, got a dimension of size 0")
    dims = [None if isinstance(dim, tuple) else dim for dim in dims]  # those of a tuple's items
    return one_by_one(function, info, dims, args)


def _split(cell, tensors):
    """Splits tensors into (weights, params, state, the rest)."""
    params = 4 + len(CELLS[cell].params)
    state = params + CELLS[cell].states + 7
    return tensors[:4], tensors[4:params], tensors[params:state], tensors[state:]


def _passed_on(state):
    """The parts of a state that gradients flow to: s, (c), buffer, relevant."""
    return (*state[:-7], state[-7], state[-4])


def _whole(passed_on):
    """The inverse of :func:`_passed_on`, with None for the other parts."""
    *first, buffer, relevant = passed_on
    return (*first, buffer, None, None, relevant, None, None, None)


def _kept(returned):
    """Indices of the outputs that are handed out."""
    return (1, 2) if returned[1] else ()


class Relevancy(torch.autograd.Function):
    """The operator with its backward pass. The first output stands in for u, which is not saved: it shares the memory
    of a saved tensor, and if the backward pass is differentiated it receives the gradient with respect to u.
    ``returned`` is (whether alpha and ids are, whether h and s are handed out, see
    :func:`rnnkern.ops.transforms.hand_out`)."""

    @staticmethod
    def forward(call, returned, u, batch_sizes, reset, scores, *tensors):
        cell, *sizes = call
        weights, params, state, _ = _split(cell, tensors)
        results = _operators.relevancy_recurrence.default(
            cell, u, weights, state, params, batch_sizes, reset, scores, *sizes, True, returned[0]
        )
        stand_in = results[-2 if cell in SAVED_GATES else 0].view(u.shape)
        return hand_out((stand_in, *results), _kept(returned))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.call, returned, _, *tensors = inputs
        _, _, state, _ = _split(ctx.call[0], tensors[3:])
        ctx.handed_out = _kept(returned)
        stand_in, h, s, *results = take_back(output, ctx.handed_out)
        last, rest = results[: len(state)], results[len(state) :]
        ctx.mark_non_differentiable(last[-6], last[-5], *last[-3:], *rest)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, stand_in, h, s, *rest[2 * returned[0] :])

    @staticmethod
    def backward(ctx, *grads):
        cell = ctx.call[0]
        grad_u, grad_h, grad_s, *grads = gradients_taken_back(grads, ctx.handed_out)
        last = grads[: CELLS[cell].states + 7]
        upstream = (grad_h, grad_s, *_passed_on(last))
        if all(g is None for g in upstream):
            count = 4 + len(CELLS[cell].params) + len(last)
            return None, None, grad_u, *(None,) * (3 + count)
        compiling = torch.compiler.is_compiling()
        backward = RelevancyBackward.forward if compiling else RelevancyBackward.apply
        du, *rest = backward(ctx.call, *ctx.saved_tensors, *upstream)
        end = 2 + len(upstream)
        weights, passed_on, params = rest[:4], rest[4:end], rest[end : end + len(CELLS[cell].params)]
        of_scores = rest[-1] if len(rest) > end + len(params) else None
        return (
            None,
            None,
            du if grad_u is None else du + grad_u,
            None,
            None,
            of_scores,
            *weights,
            *params,
            *_whole(passed_on),
        )

    @staticmethod
    def vmap(info, dims, *args):
        return _over_members(_apply, info, dims, args)


_apply = applied_whole(Relevancy, "relevancy_recurrence")


class RelevancyBackward(torch.autograd.Function):
    """The backward pass as a function of the gradients of h, s and the state, and of the stand-in for u."""

    @staticmethod
    def forward(call, batch_sizes, reset, scores, *tensors):
        cell, *sizes = call
        weights, params, state, rest = _split(cell, tensors)
        (_, h, s, *saved), grad_h, grad_s, grad_state = _upstream(cell, rest)
        if all(g is None for g in grad_state):
            grad_state = None
        else:
            like = [*state[: CELLS[cell].states], *(_last_shape(k, sizes[0], h, state, batch_sizes) for k in (-7, -4))]
            grad_state = [x.new_zeros(x.shape) if g is None else g for g, x in zip(grad_state, like, strict=True)]
        return tuple(
            _operators.relevancy_recurrence_backward.default(
                cell, grad_h, grad_s, grad_state, weights, state, params, batch_sizes, reset, scores, *sizes, h, s,
                saved,
            )
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.call, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, *grads):
        cell = ctx.call[0]
        batch_sizes, reset, scores, *tensors = ctx.saved_tensors
        weights, params, state, rest = _split(cell, tensors)
        (_, h, s, *saved), *upstream = _upstream(cell, rest)
        of_u, of_weights, of_params, of_state, of_scores, of_upstream = differentiate_backward(
            ctx.call, (batch_sizes, reset, scores), weights, params, state, h, s, saved,
            (upstream[0], upstream[1], *upstream[2]), grads,
        )  # fmt: skip
        return (
            None, None, None, of_scores, *of_weights, *of_params, *_whole(of_state), of_u, None, None,
            *(None for _ in saved), *of_upstream,
        )  # fmt: skip

    @staticmethod
    def vmap(info, dims, *args):
        return _over_members(RelevancyBackward.apply, info, dims, args)

    jvp = no_forward_mode("relevancy_recurrence")


def _upstream(cell, rest):
    """((stand-in, h, s, saved...), grad_h, grad_s, grad_state)."""
    first = len(rest) - CELLS[cell].states - 4
    return rest[:first], rest[first], rest[first + 1], rest[first + 2 :]


def _steps(x, batch_sizes):
    return x.shape[0] if batch_sizes is None else batch_sizes.shape[0]


def _slots(steps, first, buffer_size):
    """Number of buffer slots after a call that started with ``first``, and whether the buffer holds all events."""
    full = first + steps <= buffer_size
    return (first + steps if full else buffer_size), full


def _forward_shapes(cell, u, weights, state, params, batch_sizes, reset, scores, buffer_size, mix, dot, dtype,
                    training, maps):  # fmt: skip
    (batch, size), hidden, heads = state[0].shape, weights[2].shape[0], _heads(weights)
    slots, full = _slots(_steps(u, batch_sizes), state[-7].shape[1], buffer_size)
    relevant, rows = state[-4].shape[1], u.shape[:-1]
    ids = {"dtype": torch.int64}
    results = [u.new_empty(*rows, hidden), u.new_empty(*rows, size), *(x.new_empty(x.shape) for x in state[:-7])]
    results += [u.new_empty(batch, slots, hidden), u.new_empty(batch, slots), u.new_empty(batch, slots, **ids)]
    results += [x.new_empty(x.shape) for x in state[-4:]]
    if maps:
        kappa = slots + relevant
        results += [u.new_empty(*rows, kappa), u.new_empty(*rows, kappa, **ids)]
    if training:
        count = rows.numel() if batch_sizes is None else rows[0]
        results += [] if full else [u.new_empty(count, heads * (slots + relevant))]
        results += [u.new_empty(count, dtype=torch.int32)]
        if cell in SAVED_GATES:
            results += [u.new_empty(count, SAVED_GATES[cell] * hidden), u.new_empty(count, hidden)]
    return results


def _last_shape(part, buffer_size, h, state, batch_sizes):
    """Part -7 (the buffer) or -4 (the relevant set) of the state after a call, as a tensor that takes no memory."""
    x = state[part]
    if part == -4:
        return x
    slots, _ = _slots(_steps(h, batch_sizes), x.shape[1], buffer_size)
    return x.new_empty(()).expand(x.shape[0], slots, x.shape[2])


def _backward_shapes(cell, grad_h, grad_s, grad_state, weights, state, params, batch_sizes, reset, scores, buffer_size,
                     mix, dot, dtype, h, s, saved):  # fmt: skip
    columns = weights[0].shape[0]
    return [
        h.new_empty(*h.shape[:-1], columns),
        *(x.new_empty(x.shape) for x in (*weights, *_passed_on(state), *(params or ()))),
        *([] if scores is None or h.device.type != "cpu" else [scores.new_empty(scores.shape)]),
    ]


def _heads(weights):
    v = weights[3]
    return v.shape[0] if v.dim() == 2 else 1


if _extension.available:
    torch.library.register_fake("rnnkern::relevancy_recurrence", _forward_shapes)
    torch.library.register_fake("rnnkern::relevancy_recurrence_backward", _backward_shapes)
