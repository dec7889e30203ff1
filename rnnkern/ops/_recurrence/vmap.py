"""torch.vmap of the recurrence and of its backward pass: N members, each a call over B sequences.

Members that share their weights become the B*N sequences of one call. If members have their own weights, or need their
own gradients of shared weights, each member is one call.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rnnkern.ops.folds import Batched, one_by_one, over_sequences
from rnnkern.reference._recurrence import cell_of


def over_members(
    function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any], share: bool = True
) -> Batched:
    """The vmap rule of both autograd.Functions.

    Args:
        function: function of the arguments of one member that returns tensors.
        info: passed by torch.vmap; ``info.batch_size`` is the number of members.
        dims: the member dimension of each of ``args``; None if the argument is the same for all members.
        args: (cell, reverse, any value, number of states, rates, u, weight_ih, bias_ih, R, bias, batch_sizes, reset,
            grad_scale, seed, *state, *params), followed by other tensors with a row per sequence.
        share: whether members with shared weights may become one call.
    """
    if info.batch_size == 0:
        raise ValueError("recurrence: torch.vmap needs at least one member, got a dimension of size 0")
    cell, _, _, states = args[:4]
    dims = [None if isinstance(dim, tuple) else dim for dim in dims]  # `rates` is a tuple and has a dim for each rate
    scale, seed = args[12:14]
    scale_rank = 0 if scale is None else scale.dim() - (dims[12] is not None)
    sequences = [*[None] * 5, -2, *[None] * 5, -1, -1 if scale_rank == 2 else None, None]
    sequences += [*[-2] * states, *[None] * len(cell_of(cell).params)]
    sequences += [-2] * (len(args) - len(sequences))
    own = any(dim is not None and at is None for dim, at in zip(dims, sequences, strict=True))
    if own or not share or seed is not None:  # random draws depend on the row of a sequence, which folding would change
        return one_by_one(function, info, dims, args)
    args = list(args)
    if args[10] is not None:
        args[10] = args[10] * info.batch_size
    return over_sequences(function, info, dims, args, sequences)
