"""torch.vmap of the recurrence and of its backward pass: N members, each a call over B sequences.

Members that share their weights become the B*N sequences of one call. Members that have their own weights, or need
their own gradients of shared weights, become the heads of one call. Otherwise each member is one call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rnnkern.ops.folds import Batched, members_first, one_by_one, over_sequences
from rnnkern.reference._recurrence import cell_of


def over_members(
    function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any], share: bool = True
) -> Batched:
    """The vmap rule of both autograd.Functions.

    Args:
        function: function of the arguments of one member that returns tensors.
        info: passed by torch.vmap; ``info.batch_size`` is the number of members.
        dims: the member dimension of each of ``args``; None if the argument is the same for all members.
        args: (cell, reverse, any value, number of states, how, u, weight_ih, bias_ih, R, bias, batch_sizes, reset,
            grad_scale, seed, keep, *state, *params), followed by other tensors with a row per sequence.
        share: whether members with shared weights may become one call.
    """
    if info.batch_size == 0:
        raise ValueError("recurrence: torch.vmap needs at least one member, got a dimension of size 0")
    cell, _, _, states = args[:4]
    dims = [None if isinstance(dim, tuple) else dim for dim in dims]  # `how` is a tuple and has a dim for each number

    def of_sequences(k: int) -> int | None:
        """The dimension of sequences of a tensor (T,) or (T, B)."""
        return None if args[k] is None or args[k].dim() - (dims[k] is not None) < 2 else -1

    sequences = [*[None] * 5, -2, *[None] * 5, -1, of_sequences(12), None, of_sequences(14)]
    sequences += [*[-2] * states, *[None] * len(cell_of(cell).params)]
    if tail := args[len(sequences) :]:
        ranks = [
            x.dim() - (dim is not None) if isinstance(x, Tensor) else 0
            for x, dim in zip(tail, dims[len(sequences) :], strict=True)
        ]
        sequences += [-3 if rank > ranks[0] else -2 for rank in ranks]  # of saved values, see over_heads
    own = any(dim is not None and at is None for dim, at in zip(dims, sequences, strict=True))
    if args[13] is not None:  # random draws depend on the row of a sequence and on the unit, which folding would change
        return one_by_one(function, info, dims, args)
    if own or not share:
        return over_heads(function, info, dims, args)
    args = list(args)
    if args[10] is not None:
        args[10] = args[10] * info.batch_size
    return over_sequences(function, info, dims, args, sequences, values=not tail)


def over_heads(function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any]) -> Batched:
    """Turns unit j of member n, of N members with H units each, into unit n*H + j of one call. The arguments are those
    of :func:`over_members`. Saved tensors have shape (..., values, H) for each member, which needs no copy."""
    cell, _, wanted, states = args[:4]
    spec, members, R = cell_of(cell), info.batch_size, args[8]
    shared = all(dims[k] is None for k in (10, 11, 12, 14))  # batch_sizes, reset, grad_scale, keep
    square = spec.gates and R.shape[-2] == spec.recurrent * R.shape[-1]
    backward, projected = isinstance(wanted, frozenset), args[6] is not None
    # One call projects the input of all members if they share it. Its gradients of weight_ih are then theirs, but its
    # gradient of the input is a sum over members.
    whole = projected and dims[5] is None and not (backward and "u" in wanted)
    unlike = backward and projected and not whole
    if not (square and shared) or unlike or cell == "lstm_projected" or spec.normalised:
        return one_by_one(function, info, dims, args)
    R = members_first(R, dims[8], members)
    hidden = R.shape[1:-1].numel() // spec.recurrent
    tail = 15 + states + len(spec.params)
    rank = None if len(args) == tail else args[tail].dim() - (dims[tail] is not None)  # of h of a member

    def folded(x: Tensor, dim: int | None, apart: bool = False) -> Tensor:
        """(..., G*H) or with ``apart`` (..., G, H) of each member as (..., G*N*H)."""
        x = members_first(x, dim, members)
        return (x if apart else x.unflatten(-1, (-1, hidden))).movedim(0, -2).flatten(-3)

    def fold(k: int) -> Any:
        x, dim = args[k], dims[k]
        if k == 5 and projected:
            return x if whole else projection()
        if k == 8:
            return R if R.dim() == 3 else R.flatten(0, 1)
        if k == 6:
            return weight_ih().flatten(0, 2) if whole else None
        if k == 7 and not whole:
            return None
        if k < 5 or 10 <= k <= 14 or not isinstance(x, Tensor):
            return x
        return folded(x, dim, apart=k > tail and x.dim() - (dim is not None) > rank)

    def weight_ih() -> Tensor:
        """(G, N, H, I)"""
        return members_first(args[6], dims[6], members).unflatten(1, (-1, hidden)).movedim(0, 1)

    def projection() -> Tensor:
        bias = None if args[7] is None else folded(args[7], dims[7])
        u = torch.einsum("e...i,geji->...gej", members_first(args[5], dims[5], members), weight_ih()).flatten(-3)
        return u if bias is None else u + bias

    def unfold(k: int, x: Tensor) -> tuple[Tensor, int | None]:
        if x.dim() == 1 and not x.numel():  # a gradient that was not requested
            return x, None
        if backward and k == 1:
            return (x if R.dim() == 3 else x.unflatten(0, (members, -1))), 0
        if backward and k == 3 + states + len(spec.params):  # of weight_ih
            return x.unflatten(0, (-1, members, hidden)).movedim(1, 0).flatten(1, 2), 0
        if x.shape[-1] == members * hidden:
            return (x := x.unflatten(-1, (members, hidden))), x.dim() - 2
        x = x.unflatten(-1, (-1, members, hidden))
        return (x.movedim(-2, 0).flatten(-2), 0) if backward else (x, x.dim() - 2)

    results = function(*map(fold, range(len(args))))
    return tuple(zip(*(unfold(k, x) for k, x in enumerate(results)), strict=True))
