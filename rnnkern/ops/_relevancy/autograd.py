"""Derivatives of relevancy_recurrence, the second ones by the reference, which selects the same events again."""

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern._torch_private import is_fake
from rnnkern.ops.checks import steps_of
from rnnkern.ops.differentiable import differentiable
from rnnkern.ops.folds import one_by_one
from rnnkern.reference import RelevancyState
from rnnkern.reference._relevancy import FACTORS

SAVED_GATES = {"lstm": 4}
"""Number of values per unit that a cell saves in addition to h and c (`saved` in csrc/cells/*.h), if any."""

_operators = torch.ops.rnnkern


def parted(state):
    """[s, (c), buffer, relevant], the parts of a state that gradients flow to, and the other parts."""
    return [*state[:-6], state[-4]], [*state[-6:-4], *state[-3:]]


def _whole(passed_on, others):
    """The inverse of :func:`parted`."""
    return [*passed_on[:-1], *others[:2], passed_on[-1], *others[2:]]


def _forward(training, cell, u, weights, passed_on, others, params, batch_sizes, reset, scores, *sizes_and_maps):
    """Calls the operator.

    Returns:
        First the results that have gradients: a stand-in for u, h, s, and s, buffer, relevant and c of the last state;
        c is empty for a cell without it. Then the other parts of the last state, and what else the operator returned.
        The stand-in shares the memory of a tensor that the backward pass reads: it takes the place of u, which is not
        saved, in second derivatives.
    """
    *sizes, maps = sizes_and_maps
    h, s, *rest = _operators.relevancy_recurrence.default(
        cell, u, weights, _whole(passed_on, others), params, batch_sizes, reset, scores, *sizes, training, maps
    )
    count = len(passed_on) + len(others)
    last, others = parted(rest[:count])
    rest = rest[count:]
    c = last.pop(1) if len(last) == 4 else h.new_empty(0)
    stand_in = rest.pop(-2) if training and cell in SAVED_GATES else h
    return [stand_in.view(u.shape) if training else h, h, s, *last, c, *others, *rest]


def _saves(args, outputs):
    """The arguments of the backward operator after the gradients, with the stand-in for u in its place."""
    cell, _, weights, passed_on, others, *given, maps = args
    stand_in, h, s = outputs[:3]
    saved = list(outputs[12 + 2 * maps :])
    if cell in SAVED_GATES:
        saved.insert(-1, stand_in)
    else:
        h = stand_in
    return cell, weights, _whole(passed_on, others), *given, h, s, saved


def _backward_arguments(grads, saved, needs):
    """Passes either no gradient of the state or all of them."""
    cell, weights, state, params, batch_sizes, reset, scores, buffer_size, *sizes, h, s, saved = saved
    grad_h, grad_s, last_s, buffer, relevant, c = grads
    grad_state = [last_s, *([c] if cell in SAVED_GATES else []), buffer, relevant]
    if all(g is None for g in grad_state):
        grad_state = None
    else:
        slots, _ = _slots(steps_of(h, batch_sizes), state[-7].shape[1], buffer_size)
        shapes = [*(x.shape for x in state[:-7]), (len(state[0]), slots, h.shape[-1]), state[-4].shape]
        grad_state = [s.new_zeros(shape) if g is None else g for g, shape in zip(grad_state, shapes, strict=True)]
    if cell in SAVED_GATES:
        saved = [*saved[:-2], saved[-2].flatten(0, -2), saved[-1]]
    given = weights, state, params, batch_sizes, reset, scores, buffer_size, *sizes
    return cell, grad_h, grad_s, grad_state, *given, h, s, saved


def _reference_backward(
    cell, grad_h, grad_s, grad_state, weights, state, params, batch_sizes, reset, scores, buffer_size, factor, dot,
    dtype, h, s, saved,
):  # fmt: skip
    if is_fake(h):
        raise NotImplementedError(
            "relevancy_recurrence: torch.compile cannot trace second derivatives, because the reference reads the "
            "selected events; call it outside torch.compile"
        )
    params = params or []
    passed_on = ["s", *(["c"] if cell in SAVED_GATES else []), "buffer", "relevant"]
    whole = RelevancyState(state[0], state[1] if cell in SAVED_GATES else None, *state[-7:])
    u = _input(cell, weights[0], params, state[0], batch_sizes, reset, h, s, saved)
    stand_in = (saved[-2] if cell in SAVED_GATES else h).view(u.shape)
    u = u + (stand_in - stand_in.detach())  # passes on its gradient
    leaves = {"u": u, "weights": weights, "state": {name: getattr(whole, name) for name in passed_on}}
    leaves |= {"params": params, "scores": scores if scores is not None else u.new_empty(0)}
    upstream = zip(passed_on, grad_state or [None] * len(passed_on), strict=True)
    given = {"h": grad_h, "all s": grad_s, **{f"last {name}": g for name, g in upstream}}
    given = {name: g for name, g in given.items() if g is not None}
    combine = "concat" if state[0].shape[1] != h.shape[-1] else next(n for n, x in FACTORS.items() if x == factor)

    def forward(leaves):
        def outputs(output):
            R, *attention = leaves["weights"]
            return reference.relevancy_recurrence(
                cell, leaves["u"], R, whole._replace(**leaves["state"]), attention, buffer_size=buffer_size,
                relevant_size=whole.ids.shape[1], combine=combine, alignment="dot" if dot else "additive",
                relevance="attention" if scores is None else leaves["scores"], params=leaves["params"],
                batch_sizes=batch_sizes, reset=reset, output=output,
            )  # fmt: skip

        found = {}
        if "all s" in given:
            found["all s"], last = outputs("s")
        if "h" in given or not found:
            found["h"], last = outputs("h")
        found |= {f"last {name}": getattr(last, name) for name in passed_on}
        return {name: found[name] for name in given}

    (found,) = torch.func.vjp(forward, leaves)[1](given)
    return found["u"], *found["weights"], *found["state"].values(), *found["params"], found["scores"]


def _input(cell: str, V: Tensor, params, s0, batch_sizes, reset, h, s, saved) -> Tensor:
    """u, which is not saved, recomputed from the outputs of the cell: the inverse of its activation, minus V s."""
    edge = 1 - torch.finfo(h.dtype).eps
    if cell == "lstm":
        i, f, g, o = saved[-2].view(*h.shape[:-1], -1).chunk(4, -1)
        i, f, o = (torch.logit(x, 1 - edge) for x in (i, f, o))
        z = torch.cat([i, f, torch.atanh(g.clamp(-edge, edge)), o], -1)
    elif cell == "tanh":
        z = torch.atanh(h.clamp(-edge, edge))
    elif cell == "relu":
        z = torch.where(h > 0, h, -1.0)
    else:
        z = h - torch.sign(h) * params[0]
    return (z - _before(s0, batch_sizes, reset, s) @ V.T).detach()


def _before(s0, batch_sizes, reset, s):
    """s before each step."""
    sizes = torch.full((s.shape[0],), s0.shape[0]) if batch_sizes is None else batch_sizes
    ends = sizes.cumsum(0)
    steps = torch.repeat_interleave(sizes)
    samples = torch.arange(steps.shape[0]) - (ends - sizes)[steps]
    rows = torch.where(steps == 0, samples, s0.shape[0] + (ends - sizes)[steps - 1] + samples).to(s.device)
    before = torch.cat([s0, s.reshape(-1, s0.shape[1])])[rows]
    if reset is not None:
        before = torch.where(reset[steps.to(s.device), samples.to(s.device)].unsqueeze(1), 0, before)
    return before.view(s.shape)


def _slots(steps, first, buffer_size):
    """Number of buffer slots after a call that started with ``first``, and whether the buffer holds all events."""
    full = first + steps <= buffer_size
    return (first + steps if full else buffer_size), full


def _forward_shapes(cell, u, weights, state, params, batch_sizes, reset, scores, buffer_size, mix, dot, dtype,
                    training, maps):  # fmt: skip
    (batch, size), hidden, heads = state[0].shape, weights[2].shape[0], _heads(weights)
    slots, full = _slots(steps_of(u, batch_sizes), state[-7].shape[1], buffer_size)
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


def _backward_shapes(cell, grad_h, grad_s, grad_state, weights, state, params, batch_sizes, reset, scores, buffer_size,
                     mix, dot, dtype, h, s, saved):  # fmt: skip
    columns = weights[0].shape[0]
    return [
        h.new_empty(*h.shape[:-1], columns),
        *(x.new_empty(x.shape) for x in (*weights, *parted(state)[0], *(params or ()))),
        *([] if scores is None or h.device.type != "cpu" else [scores.new_empty(scores.shape)]),
    ]


def _heads(weights):
    v = weights[3]
    return v.shape[0] if v.dim() == 2 else 1


def _fold(function, info, dims, args):
    if info.batch_size == 0:
        raise ValueError("relevancy_recurrence: torch.vmap needs at least one member, got a dimension of size 0")
    return one_by_one(function, info, dims, args)


by_operator = differentiable(
    "relevancy_recurrence",
    forward=_forward,
    results=7,
    saves=_saves,
    kept=(1, 2),
    stands_for=1,
    gradients=(1, 2, 3, 5, 8),
    reference_backward=_reference_backward,
    backward_arguments=_backward_arguments,
    leaves=(1, 2, 3, 4, 5, 6, 9, 14, 16),
    fold=_fold,
    shapes=_forward_shapes,
    backward_shapes=_backward_shapes,
)
"""Function of (cell, u, weights, the parts of the state from :func:`parted`, params, batch_sizes, reset, scores,
buffer_size, the factor of ``combine``, whether the alignment is "dot", the caller's dtype, whether alpha and ids are
returned). If that dtype has 16 bits, tensors are float32, with weights rounded to 16 bits. Results as in
:func:`_forward`."""
