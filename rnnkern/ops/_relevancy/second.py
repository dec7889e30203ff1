"""Second derivatives of relevancy_recurrence. The backward pass equals the gradient of the reference, so
differentiating the latter differentiates the former. The selection carries no gradient in either."""

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern._torch_private import is_fake
from rnnkern.reference import CELLS, RelevancyState
from rnnkern.reference._relevancy import FACTORS

WEIGHTS = ("R", "W_a", "U_a", "v")


def differentiate_backward(call, constants, weights, params, state, h, s, saved, upstream, grads):
    """The vector-Jacobian product of the backward pass.

    Args:
        call: (cell, buffer_size, the factor of ``combine``, whether the alignment is "dot", the caller's dtype).
        constants: (batch_sizes, reset, scores).
        weights, params, state: as the operator takes them, with the complete state.
        h, s, saved: as the forward pass returned them.
        upstream: the gradients of h, s, and the state's s, (c), buffer and relevant that the backward pass received;
            None for a missing one.
        grads: gradients of the results of the backward pass, in the operator's order.

    Returns:
        Gradients of u, of ``weights``, ``params``, the four parts of the state, the scores, and ``upstream``.
    """
    cell, buffer_size, factor, dot, _ = call
    batch_sizes, reset, scores = constants
    if is_fake(h):
        raise NotImplementedError(
            "relevancy_recurrence: torch.compile cannot trace second derivatives, because the reference reads the "
            "selected events; call it outside torch.compile"
        )
    passed_on = [name for name in ("s", "c", "buffer", "relevant") if name != "c" or CELLS[cell].states == 2]
    whole = RelevancyState(state[0], state[1] if CELLS[cell].states == 2 else None, *state[-7:])
    own = [f"param {k}" for k in range(len(params))]
    u = _input(cell, weights[0], params, state[0], batch_sizes, reset, h, s, saved)
    leaves = {"u": u, **dict(zip((*WEIGHTS, *own), (*weights, *params), strict=True))}
    leaves |= {name: getattr(whole, name) for name in passed_on}
    learned = ["scores"] if scores is not None and scores.requires_grad else []
    leaves |= dict.fromkeys(learned, scores)
    results = ["h", "all s", *(f"last {name}" for name in passed_on)]
    given = {name: g for name, g in zip(results, upstream, strict=True) if g is not None}
    order = ["u", *WEIGHTS, *passed_on, *own, *learned]
    asked = {name: g for name, g in zip(order, grads, strict=False) if g is not None}
    if not given or not asked:
        return None, [None] * 4, [None] * len(own), [None] * len(passed_on), None, [None] * len(results)
    hidden = weights[2].shape[0]
    combine = "concat" if state[0].shape[1] != hidden else next(n for n, value in FACTORS.items() if value == factor)

    def forward(leaves):
        def outputs(output):
            return reference.relevancy_recurrence(
                cell, leaves["u"], leaves["R"], whole._replace(**{p: leaves[p] for p in passed_on}),
                [leaves[w] for w in WEIGHTS[1:]],
                buffer_size=buffer_size, relevant_size=whole.ids.shape[1], combine=combine,
                alignment="dot" if dot else "additive",
                relevance="attention" if scores is None else leaves.get("scores", scores),
                params=[leaves[p] for p in own], batch_sizes=batch_sizes, reset=reset, output=output,
            )  # fmt: skip

        found = {}
        if "all s" in given:
            found["all s"], last = outputs("s")
        if "h" in given or not found:
            found["h"], last = outputs("h")
        found |= {f"last {name}": getattr(last, name) for name in passed_on}
        return {name: found[name] for name in given}

    def backward(leaves, given):
        gradients = torch.func.vjp(forward, leaves)[1](given)[0]
        return {name: gradients[name] for name in asked}

    of_leaves, of_given = torch.func.vjp(backward, leaves, given)[1](asked)
    groups = [[of_leaves[name] for name in names] for names in (WEIGHTS, own, passed_on)]
    return of_leaves["u"], *groups, of_leaves.get("scores"), [of_given.get(name) for name in results]


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
