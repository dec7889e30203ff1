"""Forward mode of the recurrence: tangents along a known trajectory."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops._recurrence.facts import KERNEL_CELLS
from rnnkern.ops.differentiable import applied
from rnnkern.ops.dispatch import warn_once
from rnnkern.ops.folds import one_by_one
from rnnkern.reference._noise import dropout_mask
from rnnkern.reference._recurrence import cell_of, product_of

_operators = torch.ops.rnnkern

ARGUMENTS = ("u", "weight_ih", "bias_ih", "R", "bias", "batch_sizes", "reset", "seed", "keep")
FORCING = ("u_tangent", "r_tangent")

NO_CUDA = _extension.missing(
    "forward mode has no CUDA kernel",
    "move the call to a CPU; short sequences are faster there than a loop over the steps on a GPU",
)


class Parts:
    """The tensors of a :class:`RecurrenceTangent`: those named in ARGUMENTS and in FORCING, the state, the params, the
    tangents of both (None for a zero one of the params), and h and what the training forward saved, with the gates."""

    def __init__(self, cell: str, states: int, tensors: Sequence[Any]) -> None:
        params = len(cell_of(cell).params)
        rest = iter(tensors)

        def take(count):
            return [next(rest) for _ in range(count)]

        self.arguments, self.forcing = take(len(ARGUMENTS)), take(len(FORCING))
        self.state, self.params = take(states), take(params)
        self.tangents, self.params_tangent = take(states), take(params)
        self.h, *self.saved = rest

    def call_of_reference(self, cell: str, reverse: bool, rates: Sequence[float]) -> Any:
        """The results of the reference but h and the final state."""
        named = dict(zip(ARGUMENTS, self.arguments, strict=True)) | dict(zip(FORCING, self.forcing, strict=True))
        return lambda **how: reference.recurrence_tangent(
            cell, named.pop("u"), named.pop("R"), self.state, self.tangents, params=self.params,
            params_tangent=self.params_tangent, reverse=reverse, zoneout=rates[:-1] or 0.0,
            dropout=rates[-1] if rates else 0.0, **named, **how,
        )[2:]  # fmt: skip


class RecurrenceTangent(torch.autograd.Function):
    """The operator; ``tensors`` as in :class:`Parts`. Its results are functions of the arguments and tangents: h and
    what was saved follow from the arguments. Derivatives go through the reference."""

    @staticmethod
    def forward(cell, reverse, states, rates, every, sequence, *tensors):
        parts = Parts(cell, states, tensors)
        if parts.h.device.type != "cpu":
            warn_once("recurrence_tangent", (NO_CUDA,))
            return _flat(parts.call_of_reference(cell, reverse, rates)(every=every, sequence=sequence))
        _, _, _, R, bias, batch_sizes, reset, seed, keep = parts.arguments
        # The operator reads only the shape of u: a tensor of its size that takes no memory.
        u = parts.h.new_empty(()).expand(*parts.h.shape[:-1], cell_of(cell).gates * parts.state[-1].shape[-1])
        if cell == "lstm_projected":
            u = parts.h.new_empty(()).expand(*parts.h.shape[:-1], 4 * parts.params[0].shape[1])
        zoneout, dropout = (rates[:-1], rates[-1]) if rates else (None, 0.0)
        return tuple(
            _operators.recurrence_tangent.default(
                cell, u, R, parts.state, parts.tangents, bias, parts.params or None, batch_sizes, reset, reverse,
                parts.h, parts.saved, *parts.forcing, _given_params(cell, reverse, parts), every, sequence, zoneout,
                dropout, seed, keep,
            )
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx, inputs, output):
        *ctx.call, ctx.every, ctx.sequence = inputs[:6]
        ctx.mark_non_differentiable(output[-1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[6:])

    @staticmethod
    def backward(ctx, *grads):
        wanted = {k: g for k, g in enumerate(grads[:-1]) if g is not None}
        function, leaves = _function_of_leaves(ctx)
        if not wanted:
            return (None,) * (6 + len(ctx.saved_tensors))
        pull = torch.func.vjp(lambda leaves: {k: function(leaves)[k] for k in wanted}, leaves)[1]
        found = pull(wanted)[0]
        return (*[None] * 6, *[found.get(k) for k in range(len(ctx.saved_tensors))])

    @staticmethod
    def vmap(info, dims, *args):
        return _over_tangents(info, dims, args)


def push_forward(ctx, *dots):
    """The jvp of :class:`RecurrenceTangent`."""
    function, leaves = _function_of_leaves(ctx)
    given = {k: torch.zeros_like(x) if dots[6 + k] is None else dots[6 + k] for k, x in leaves.items()}
    return *torch.func.jvp(lambda leaves: function(leaves)[:-1], (leaves,), (given,))[1], None


propagate = applied(RecurrenceTangent, "recurrence_tangent", push_forward)
"""Calls :class:`RecurrenceTangent`. Returns [h_tangent, *tangents of the final state, log_r, lost]."""


def _flat(results):
    h_tangent, tangents, log_r, lost = results
    return h_tangent, *tangents, log_r, lost


def _function_of_leaves(ctx):
    """The reference as a function of the tensors that derivatives are taken of, and these, by their place."""
    cell, reverse, states, rates = ctx.call
    tensors = list(ctx.saved_tensors)
    last = len(ARGUMENTS) + len(FORCING) + 2 * (states + len(cell_of(cell).params))
    constant = ARGUMENTS.index("keep")
    given = ((k, x) for k, x in enumerate(tensors[:last]) if k != constant)
    floating = ((k, x) for k, x in given if x is not None and x.is_floating_point())
    leaves = {k: x.contiguous() for k, x in floating}  # dual numbers cannot be made of expanded tensors

    def function(leaves):
        parts = Parts(cell, states, [leaves.get(k, x) for k, x in enumerate(tensors)])
        return _flat(parts.call_of_reference(cell, reverse, rates)(every=ctx.every, sequence=ctx.sequence))

    return function, leaves


def _given_params(cell, reverse, parts):
    """The tangents of the params in the form that the operator takes."""
    given = parts.params_tangent
    if all(x is None for x in given):
        return None
    if cell == "lstm_projected":
        before = Before(parts.arguments[5], parts.arguments[6], reverse)
        i, f, g, o = parts.saved[1].chunk(4, -1)
        unprojected = o * torch.tanh(f * before(parts.state[1], parts.saved[0]) + i * g)
        return [torch.einsum("...h,sph->s...p", unprojected, given[0].to(unprojected)).to(given[0])]
    count = parts.tangents[0].shape[0]
    pairs = zip(given, parts.params, strict=True)
    return [x.new_zeros(count, *x.shape) if dot is None else dot for dot, x in pairs]


def _over_tangents(info, dims, args):
    """torch.vmap: the tangents of members that share the trajectory are those of one call."""
    cell, _, states, _, every, sequence, *_ = args
    dims = [None if isinstance(dim, tuple) else dim for dim in dims]  # `rates` is a tuple
    params, first = len(cell_of(cell).params), 6 + len(ARGUMENTS)
    last = first + len(FORCING) + 2 * (states + params)
    folds = [first <= k < first + len(FORCING) or last - states - params <= k < last for k in range(len(args))]
    if every or any(dim is not None and not fold for dim, fold in zip(dims, folds, strict=True)):
        return one_by_one(propagate, info, dims, args)

    def fold(x, dim):
        x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        return x.flatten(0, 1)

    given = [fold(x, dim) if f and x is not None else x for x, dim, f in zip(args, dims, folds, strict=True)]
    h_tangent, *tangents, log_r, lost = propagate(*given)
    outer = [x.unflatten(0, (info.batch_size, -1)) for x in ((h_tangent, *tangents) if sequence else tangents)]
    results = (*(() if sequence else (h_tangent,)), *outer, log_r, lost.unflatten(1, (info.batch_size, -1)))
    return results, (*(() if sequence else (None,)), *[0] * len(outer), None, 1)


class Before:
    """The state before each step, with the rows of the sequence: a function of the initial state and of the states of
    all steps. Rows of a reset are zero."""

    def __init__(self, batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool) -> None:
        self.reverse, self.packed = reverse, batch_sizes is not None
        if self.packed:
            sizes = batch_sizes.to("cpu")
            offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
            step = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
            self.sequence = torch.arange(len(step)) - offsets[step]
            neighbour = step + 1 if reverse else step - 1
            inside = (neighbour >= 0) & (neighbour < len(sizes))
            neighbour = neighbour.clamp(0, max(len(sizes) - 1, 0))
            inside &= self.sequence < sizes[neighbour]
            batch = int(sizes[0]) if len(sizes) else 0
            self.place = torch.where(inside, batch + offsets[neighbour] + self.sequence, self.sequence)
            self.batch = batch
            reset = None if reset is None else reset[step, self.sequence]
        self.reset = reset

    def __call__(self, initial: Tensor, states: Tensor) -> Tensor:
        if self.packed:
            before = torch.cat([initial[: self.batch], states])[self.place.to(states.device)]
        else:
            before = torch.cat([states, initial[None]])[1:] if self.reverse else torch.cat([initial[None], states])[:-1]
        return before if self.reset is None else torch.where(self.reset[..., None], 0, before)

    def rows_of(self, per_sequence: Tensor, like: Tensor) -> Tensor:
        """A tensor (B, columns) with the rows of the sequence."""
        if self.packed:
            return per_sequence[self.sequence.to(like.device)]
        return per_sequence.expand(*like.shape[:-1], per_sequence.shape[-1])


def tangents_of(cell, reverse, rates, arguments, state, params, h, saved, dots, state_dots, params_dots):
    """The jvp of the recurrence: the tangents of h and of the final state.

    Args:
        cell, reverse, rates, arguments, state, params, h, saved: as in :class:`RecurrenceTangent`.
        dots: tangents of (u, weight_ih, bias_ih, R, bias), shaped like them; None for a zero one.
        state_dots, params_dots: tangents of the state and of the params, likewise.
    """
    x, weight_ih, *_ = arguments
    x_dot, weight_dot, bias_ih_dot, R_dot, bias_dot = dots
    facts = cell_of(cell)
    of_u = _sum_of_products([(x_dot, weight_ih), (x, weight_dot)], bias_ih_dot) if weight_ih is not None else x_dot
    of_r = bias_dot
    if R_dot is not None:
        of_r = _forcing(cell, reverse, rates, arguments, state, params, h, saved, R_dot, bias_dot)
    if facts.joint:
        of_u, of_r = of_r if of_u is None else of_u if of_r is None else of_u + of_r, None

    def whole(x):
        # A single bias is expanded to the rows of the sequence.
        return None if x is None else x.expand(*h.shape[:-1], x.shape[-1])[None]

    tangents = [(torch.zeros_like(s) if d is None else d)[None] for s, d in zip(state, state_dots, strict=True)]
    params_tangent = [None if d is None else d[None] for d in params_dots]
    h_tangent, *final, _, _ = propagate(
        cell, reverse, len(state), rates, 0, True, *arguments, whole(of_u), whole(of_r), *state, *params, *tangents,
        *params_tangent, h, *saved,
    )  # fmt: skip
    return h_tangent[0], [x[0] for x in final]


def _sum_of_products(pairs, bias):
    """The sum of x W^T over the pairs (x, W) of two tensors, and of the bias; in one product."""
    given = [(x, W) for x, W in pairs if x is not None and W is not None]
    if not given:
        return bias
    x, W = (torch.cat(parts, -1) if len(given) > 1 else parts[0] for parts in zip(*given, strict=True))
    return F.linear(x, W, bias)


def _forcing(cell, reverse, rates, arguments, state, params, h, saved, R_dot, bias_dot):
    """R_dot times what R multiplied in each step, plus bias_dot."""
    x, weight_ih, bias_ih, R, bias, batch_sizes, reset, seed, _ = arguments
    facts, before = cell_of(cell), Before(batch_sizes, reset, reverse)
    rows = before(state[0], h).flatten(0, -2)
    kept = None
    if seed is not None and rates[-1] > 0:
        kept = before.rows_of(dropout_mask(seed, rates[-1], state[0]), h).flatten(0, -2)
    forced = product_of(R_dot, bias_dot, facts.recurrent, None, kept)
    if cell in KERNEL_CELLS and KERNEL_CELLS[cell]["first_gates"] == facts.recurrent:
        products = forced(rows)
    else:  # the cell's formula, for all steps at once, says what its second product multiplies
        parts, given = [], product_of(R, bias, facts.recurrent, None, kept)

        def product(operand, first=0, last=facts.recurrent):
            parts.append(forced(operand, first, last))
            return given(operand, first, last)

        u = x if weight_ih is None else F.linear(x, weight_ih, bias_ih)
        rest = [before(s, made.to(s)).flatten(0, -2) for s, made in zip(state[1:], saved, strict=False)]
        facts.step(u.flatten(0, -2), product, (rows, *rest), *params)
        products = torch.cat(parts, -1)
    return products.unflatten(0, h.shape[:-1])


def _shapes(cell, u, R, state, tangents, bias, params, batch_sizes, reset, reverse, h, saved, u_tangent, r_tangent,
            params_tangent, every, sequence, zoneout, dropout, seed, keep=None):  # fmt: skip
    count, batch = tangents[0].shape[:2]
    steps = u.shape[0] if batch_sizes is None else batch_sizes.shape[0]
    sizes = (-(-steps // every), batch, count) if every else (0,)
    return [
        h.new_empty((count, *h.shape) if sequence else (0,)),
        *(x.new_empty(x.shape) for x in tangents),
        h.new_empty(sizes, dtype=torch.float64),
        h.new_empty((batch, count), dtype=torch.int64),
    ]


if _extension.available:
    torch.library.register_fake("rnnkern::recurrence_tangent", _shapes)
