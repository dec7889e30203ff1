"""Second derivatives of the recurrence, which are those of the reference.

The backward pass equals the gradient of the reference, so differentiating the latter differentiates the former."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern.ops.differentiable import check_lengths_are_there

NAMES = ("u", "weight_ih", "bias_ih", "R", "bias")


class ReferenceBackward:
    """The backward pass of a call as a differentiable function, through the reference.

    Args:
        rates: zoneout rates, one for each state tensor, and the dropout rate; or empty.
        tensors: (u, weight_ih, bias_ih, R, bias, batch_sizes, reset, grad_scale, seed, keep) of the call.
        upstream: the gradients of h and of each state that the backward pass received; None for a missing one.
    """

    def __init__(
        self, cell: str, reverse: bool, rates: Sequence[float], tensors: Sequence[Tensor | None],
        state: Sequence[Tensor], params: Sequence[Tensor], upstream: Sequence[Tensor | None],
    ) -> None:  # fmt: skip
        *weights, batch_sizes, reset, grad_scale, seed, keep = tensors
        check_lengths_are_there("recurrence", batch_sizes)
        self.states = [f"s{k}" for k in range(len(state))]
        self.params = [f"p{k}" for k in range(len(params))]
        self.names = (*NAMES, *self.states, *self.params)
        leaves = zip(self.names, (*weights, *state, *params), strict=True)
        self.leaves = {name: x for name, x in leaves if x is not None}
        self.of_upstream = ("h", *(f"final {s}" for s in self.states))
        self.upstream = {name: g for name, g in zip(self.of_upstream, upstream, strict=True) if g is not None}
        self.results = ("u", "R", "bias", *self.states, *self.params, "weight_ih", "bias_ih")
        """The names of the results of the backward operator, in order."""

        def forward(leaves):
            h, final = reference.recurrence(
                cell, leaves["u"], leaves["R"], [leaves[s] for s in self.states], bias=leaves.get("bias"),
                params=[leaves[p] for p in self.params], batch_sizes=batch_sizes, reset=reset, reverse=reverse,
                grad_scale=grad_scale, weight_ih=leaves.get("weight_ih"), bias_ih=leaves.get("bias_ih"),
                zoneout=rates[:-1] or 0.0, dropout=rates[-1] if rates else 0.0, seed=seed, keep=keep,
            )  # fmt: skip
            return {name: y for name, y in zip(self.of_upstream, (h, *final), strict=True) if name in self.upstream}

        self._forward = forward

    def function(self, asked: Sequence[str]) -> Callable:
        """The function of (leaves, upstream) that returns the gradients of the leaves in ``asked``."""

        def backward(leaves, upstream):
            gradients = torch.func.vjp(self._forward, leaves)[1](upstream)[0]
            return {name: gradients[name] for name in asked}

        return backward


def differentiate_backward(
    cell: str, reverse: bool, rates: Sequence[float], tensors: Sequence[Tensor | None],
    state: Sequence[Tensor], params: Sequence[Tensor],
    upstream: Sequence[Tensor | None], grads: Sequence[Tensor | None],
) -> tuple[list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    """The vector-Jacobian product of the backward pass.

    Args:
        cell, reverse, rates, tensors, state, params, upstream: as in :class:`ReferenceBackward`.
        grads: gradients of the results of the backward pass, in the operator's order; None for a missing one.

    Returns:
        Gradients of (u, weight_ih, bias_ih, R, bias, *state, *params), and of ``upstream``.
    """
    of = ReferenceBackward(cell, reverse, rates, tensors, state, params, upstream)
    asked = {
        name: g
        for name, g in zip(of.results, grads, strict=False)
        if g is not None and name in of.leaves and of.leaves[name].shape == g.shape  # otherwise it was not requested
    }
    if not of.upstream or not asked:
        return [None] * len(of.names), [None] * len(of.of_upstream)
    of_leaves, of_given = torch.func.vjp(of.function(asked), of.leaves, of.upstream)[1](asked)
    return [of_leaves.get(n) for n in of.names], [of_given.get(n) for n in of.of_upstream]


def push_forward_backward(
    of: ReferenceBackward, dots: dict[str, Tensor | None], upstream_dots: Sequence[Tensor | None],
    shapes: Sequence[torch.Size],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The Jacobian-vector product of the backward pass.

    Args:
        of: the backward pass.
        dots: tangents of its leaves by name; None or missing for zero.
        upstream_dots: tangents of its upstream gradients.
        shapes: those of the results of the operator; gradients that were not requested are empty.

    Returns:
        The tangents of the results.
    """
    named = dict(zip(of.results, shapes, strict=False))
    asked = [name for name, shape in named.items() if name in of.leaves and of.leaves[name].shape == shape]

    def filled(values, dots):
        return {name: torch.zeros_like(x) if dots.get(name) is None else dots[name] for name, x in values.items()}

    given = filled(of.leaves, dots), filled(of.upstream, dict(zip(of.of_upstream, upstream_dots, strict=True)))
    found: dict[str, Tensor] = {}
    if of.upstream and asked:
        # A pullback is linear, and its own pullback is the Jacobian. torch.func.jvp would not work with dual numbers of
        # torch.autograd.forward_ad, which PyTorch does not nest.
        gradients, pull = torch.func.vjp(of.function(asked), of.leaves, of.upstream)
        zeros = {name: torch.zeros_like(x) for name, x in gradients.items()}
        (found,) = torch.func.vjp(pull, zeros)[1](given)
    return tuple(found[name] if name in found else of.leaves["u"].new_zeros(shape) for name, shape in named.items())
