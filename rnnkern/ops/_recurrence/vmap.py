"""torch.vmap of the recurrence and of its backward: N members, each a call over B sequences.

Members that share their weights are the B*N sequences of one call. Where each has weights of its own, or is to have its
own gradient of shared ones, each is a call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rnnkern.reference import CELLS

Batched = tuple[tuple[Tensor, ...], tuple[int | None, ...]]
"""Results, and which dimension of each is that of the members."""


def over_members(function: Callable, members: int, dims: Sequence[int | None], args: Sequence[Any],
                 share: bool = True) -> Batched:  # fmt: skip
    """The rule of both Functions of recurrence_autograd.

    Args:
        function: takes the arguments of one member and returns tensors.
        members: N.
        dims: which dimension of each of ``args`` is that of the members; None where it is the same for all.
        args: (cell, reverse, anything, number of states, rates, u, weight_ih, bias_ih, R, bias, batch_sizes, reset,
            grad_scale, seed, *state, *params), and more tensors with a row per sequence.
        share: whether shared weights allow one call.
    """
    if members == 0:
        raise ValueError("recurrence: torch.vmap must be over at least one member, got a dimension of size 0")
    cell, _, _, states = args[:4]
    dims = [None if isinstance(dim, tuple) else dim for dim in dims]  # `rates` has one for each
    scale, seed = args[12:14]
    scale_rank = 0 if scale is None else scale.dim() - (dims[12] is not None)
    sequences = [*[None] * 5, -2, *[None] * 5, -1, -1 if scale_rank == 2 else None, None]
    sequences += [*[-2] * states, *[None] * len(CELLS[cell].params)]
    sequences += [-2] * (len(args) - len(sequences))
    own = any(dim is not None and at is None for dim, at in zip(dims, sequences, strict=True))
    if own or not share or seed is not None:  # what is drawn for a sequence depends on its row
        return one_by_one(function, members, dims, args)
    args = list(args)
    if args[10] is not None:
        args[10] = args[10] * members
    return as_sequences(function, members, dims, args, sequences)


def one_by_one(function: Callable, members: int, dims: Sequence[int | None], args: Sequence[Any]) -> Batched:
    """A call for each of at least one member."""
    results = [
        function(*(x if dim is None else x.select(dim, n) for x, dim in zip(args, dims, strict=True)))
        for n in range(members)
    ]
    stacked = tuple(map(torch.stack, zip(*results, strict=True)))
    return stacked, (0,) * len(stacked)


def as_sequences(
    function: Callable, members: int, dims: Sequence[int | None], args: Sequence[Any], sequences: Sequence[int | None]
) -> Batched:
    """Sequence b of member n is sequence b*N+n, so that packed rows stay in order. ``sequences`` says which dimension
    of each of ``args`` is theirs, from the end; None if none is."""

    def fold(x, dim, at):
        if x is None or at is None:
            return x
        if dim is None:
            x = x.unsqueeze(at)
            x = x.expand(*x.shape[:at], members, *x.shape[x.dim() + at + 1 :])
        else:
            x = x.movedim(dim, at)
        return x.flatten(at - 1, at)

    def unfold(x):
        if x.dim() < 2:  # a gradient that nobody asked for
            return x, None
        return x.unflatten(-2, (x.shape[-2] // members, members)), x.dim() - 1

    results, out_dims = zip(*map(unfold, function(*map(fold, args, dims, sequences))), strict=True)
    return results, out_dims
