"""Rules for torch.vmap: they turn the calls of several members into one call of an operator, or into one call each.

Each rule takes a function that returns a tuple of tensors; ``info``, whose ``batch_size`` is the number of members; the
member dimension of each argument (None if it is the same for all members); and the arguments. It returns the results
and the member dimension of each.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Batched = tuple[tuple[Tensor, ...], tuple[int | None, ...]]


def as_batch(function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any]) -> Batched:
    """For operators on batches of any rank: members become the first batch dimension."""
    results = function(*_members_first(info.batch_size, dims, args))
    return results, (0,) * len(results)


def in_first_dimension(function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any]) -> Batched:
    """Turns (V, B, ...) of V members into V * B samples of one call."""
    first = _members_first(info.batch_size, dims, args)
    results = function(*(x.flatten(0, 1) if isinstance(x, Tensor) else x for x in first))
    return tuple(x.unflatten(0, (info.batch_size, -1)) for x in results), (0,) * len(results)


def over_channels(function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any]) -> Batched:
    """Turns (..., C) of V members into V * C channels of one call. ``batch_sizes`` and ``reset``, the arguments that
    are not floating-point tensors, have no channels: if one of them differs between members, each member is a call of
    its own."""
    channels = [isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex()) for x in args]
    if any(dim is not None and not folds for dim, folds in zip(dims, channels, strict=True)):
        return one_by_one(function, info, dims, args)

    def fold(x, dim):
        expanded = x.unsqueeze(-2) if dim is None else x.movedim(dim, -2)
        return expanded.expand(*expanded.shape[:-2], info.batch_size, -1).flatten(-2)

    folded = [fold(x, dim) if folds else x for x, dim, folds in zip(args, dims, channels, strict=True)]
    results = tuple(x.unflatten(-1, (info.batch_size, -1)) for x in function(*folded))
    return results, tuple(x.dim() - 2 for x in results)


def one_by_one(function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any]) -> Batched:
    """One call for each member. There must be at least one."""
    results = [
        function(*(x if dim is None else x.select(dim, n) for x, dim in zip(args, dims, strict=True)))
        for n in range(info.batch_size)
    ]
    stacked = tuple(map(torch.stack, zip(*results, strict=True)))
    return stacked, (0,) * len(stacked)


def over_sequences(
    function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any], sequences: Sequence[int | None],
    values: bool = False,
) -> Batched:  # fmt: skip
    """Turns sequence b of member n into sequence b * V + n of one call, so that packed rows stay in order.
    ``sequences`` gives the sequence dimension of each argument, counted from the end, or None. With ``values``, results
    that have more dimensions than the first one have two after that of the sequences."""
    members = info.batch_size

    def fold(x, dim, at):
        if x is None or at is None:
            return x
        if dim is None:
            x = x.unsqueeze(at)
            x = x.expand(*x.shape[:at], members, *x.shape[x.dim() + at + 1 :])
        else:
            x = x.movedim(dim, at)
        return x.flatten(at - 1, at)

    found = function(*map(fold, args, dims, sequences))

    def unfold(x):
        if x.dim() < 2:  # a gradient that was not requested
            return x, None
        at = x.dim() - (3 if values and x.dim() > found[0].dim() else 2)
        return x.unflatten(at, (x.shape[at] // members, members)), at + 1

    results, out_dims = zip(*map(unfold, found), strict=True)
    return results, out_dims


def members_first(x: Tensor, dim: int | None, members: int) -> Tensor:
    """An argument with the dimension of members in front."""
    return x.expand(members, *x.shape) if dim is None else x.movedim(dim, 0)


def _members_first(members: int, dims: Sequence[int | None], args: Sequence[Any]) -> list[Any]:
    pairs = zip(args, dims, strict=True)
    return [members_first(x, dim, members) if isinstance(x, Tensor) else x for x, dim in pairs]
