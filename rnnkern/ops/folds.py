"""Rules of torch.vmap: how the calls of several members become one call of an operator, or one each.

Each takes a function of tensors and other arguments that returns a tuple of tensors, ``info.batch_size`` members, which
dimension of each argument is that of the members (None: the same for all), and the arguments; it returns the results
and which dimension of each is that of the members.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Batched = tuple[tuple[Tensor, ...], tuple[int | None, ...]]


def as_batch(function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any]) -> Batched:
    """Members are a first dimension, of an operator on batches of any rank."""
    results = function(*_members_first(info.batch_size, dims, args))
    return results, (0,) * len(results)


def in_first_dimension(function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any]) -> Batched:
    """(V, B, ...) of V members are V * B samples of one call."""
    first = _members_first(info.batch_size, dims, args)
    results = function(*(x.flatten(0, 1) if isinstance(x, Tensor) else x for x in first))
    return tuple(x.unflatten(0, (info.batch_size, -1)) for x in results), (0,) * len(results)


def over_channels(function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any]) -> Batched:
    """(..., C) of V members are (..., V * C) channels of one call. ``batch_sizes`` and ``reset``, which no floating
    point tensors are, have no channels: where one of them differs between members, each member is a call."""
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
    """A call for each of at least one member."""
    results = [
        function(*(x if dim is None else x.select(dim, n) for x, dim in zip(args, dims, strict=True)))
        for n in range(info.batch_size)
    ]
    stacked = tuple(map(torch.stack, zip(*results, strict=True)))
    return stacked, (0,) * len(stacked)


def over_sequences(
    function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any], sequences: Sequence[int | None]
) -> Batched:
    """Sequence b of member n is sequence b * V + n of one call, so that packed rows stay in order. ``sequences`` says
    which dimension of each argument is that of the sequences, from the end; None if none is."""
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

    def unfold(x):
        if x.dim() < 2:  # a gradient that nobody asked for
            return x, None
        return x.unflatten(-2, (x.shape[-2] // members, members)), x.dim() - 1

    results, out_dims = zip(*map(unfold, function(*map(fold, args, dims, sequences))), strict=True)
    return results, out_dims


def _members_first(members: int, dims: Sequence[int | None], args: Sequence[Any]) -> list[Any]:
    def first(x, dim):
        return x.expand(members, *x.shape) if dim is None else x.movedim(dim, 0)

    return [first(x, dim) if isinstance(x, Tensor) else x for x, dim in zip(args, dims, strict=True)]
