"""Second derivatives of the recurrence. The backward pass equals the gradient of the reference, so differentiating the
latter differentiates the former."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern.ops.transforms import check_lengths_are_there


def differentiate_backward(
    cell: str, reverse: bool, rates: Sequence[float], tensors: Sequence[Tensor | None],
    state: Sequence[Tensor], params: Sequence[Tensor],
    upstream: Sequence[Tensor | None], grads: Sequence[Tensor | None],
) -> tuple[list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    """The vector-Jacobian product of the backward pass.

    Args:
        rates: zoneout rates, one for each state tensor, and the dropout rate; or empty.
        tensors: (u, weight_ih, bias_ih, R, bias, batch_sizes, reset, grad_scale, seed) of the call.
        upstream: the gradients of h and of each state that the backward pass received; None for a missing one.
        grads: gradients of the results of the backward pass, in the operator's order: du, dR, dbias, the states', the
            params', dweight_ih and dbias_ih.

    Returns:
        Gradients of (u, weight_ih, bias_ih, R, bias, *state, *params), and of ``upstream``.
    """
    u, weight_ih, bias_ih, R, bias, batch_sizes, reset, grad_scale, seed = tensors
    check_lengths_are_there("recurrence", batch_sizes)
    names = ["u", "weight_ih", "bias_ih", "R", "bias"]
    states, own = ([f"{kind}{k}" for k in range(len(group))] for kind, group in (("s", state), ("p", params)))
    leaves = dict(zip((*names, *states, *own), (u, weight_ih, bias_ih, R, bias, *state, *params), strict=True))
    results = ["h", *(f"final {s}" for s in states)]
    given = {name: g for name, g in zip(results, upstream, strict=True) if g is not None}
    order = ["u", "R", "bias", *states, *own, "weight_ih", "bias_ih"]
    asked = {name: g for name, g in zip(order, grads, strict=False) if g is not None and _fits(g, leaves[name])}
    leaves = {name: x for name, x in leaves.items() if x is not None}
    if not given or not asked:
        return [None] * (len(names) + len(states) + len(own)), [None] * len(results)

    def forward(leaves):
        h, final = reference.recurrence(
            cell, leaves["u"], leaves["R"], [leaves[s] for s in states], bias=leaves.get("bias"),
            params=[leaves[p] for p in own], batch_sizes=batch_sizes, reset=reset, reverse=reverse,
            grad_scale=grad_scale, weight_ih=leaves.get("weight_ih"), bias_ih=leaves.get("bias_ih"),
            zoneout=rates[:-1] or 0.0, dropout=rates[-1] if rates else 0.0, seed=seed,
        )  # fmt: skip
        return {name: y for name, y in zip(results, (h, *final), strict=True) if name in given}

    def backward(leaves, given):
        gradients = torch.func.vjp(forward, leaves)[1](given)[0]
        return {name: gradients[name] for name in asked}

    of_leaves, of_given = torch.func.vjp(backward, leaves, given)[1](asked)
    return [of_leaves.get(n) for n in (*names, *states, *own)], [of_given.get(n) for n in results]


def _fits(gradient: Tensor, leaf: Tensor | None) -> bool:
    """False if this gradient was not requested from the backward pass, which then returned an empty one."""
    return leaf is not None and gradient.shape == leaf.shape
