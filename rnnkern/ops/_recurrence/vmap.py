"""torch.vmap of the recurrence and of its backward: N members, each a call over B sequences.

Members that share their weights are the B*N sequences of one call. Where each has weights of its own, or is to have its
own gradient of shared ones, each is a call.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rnnkern.ops.folds import Batched, one_by_one, over_sequences
from rnnkern.reference._recurrence import cell_of


def over_members(
    function: Callable, info: Any, dims: Sequence[int | None], args: Sequence[Any], share: bool = True
) -> Batched:
    """The rule of both Functions of recurrence_autograd.

    Args:
        function: takes the arguments of one member and returns tensors.
        info: of torch.vmap, ``info.batch_size`` members.
        dims: which dimension of each of ``args`` is that of the members; None where it is the same for all.
        args: (cell, reverse, anything, number of states, rates, u, weight_ih, bias_ih, R, bias, batch_sizes, reset,
            grad_scale, seed, *state, *params), and more tensors with a row per sequence.
        share: whether shared weights allow one call.
    """
    if info.batch_size == 0:
        raise ValueError("recurrence: torch.vmap must be over at least one member, got a dimension of size 0")
    cell, _, _, states = args[:4]
    dims = [None if isinstance(dim, tuple) else dim for dim in dims]  # `rates` has one for each
    scale, seed = args[12:14]
    scale_rank = 0 if scale is None else scale.dim() - (dims[12] is not None)
    sequences = [*[None] * 5, -2, *[None] * 5, -1, -1 if scale_rank == 2 else None, None]
    sequences += [*[-2] * states, *[None] * len(cell_of(cell).params)]
    sequences += [-2] * (len(args) - len(sequences))
    own = any(dim is not None and at is None for dim, at in zip(dims, sequences, strict=True))
    if own or not share or seed is not None:  # what is drawn for a sequence depends on its row
        return one_by_one(function, info, dims, args)
    args = list(args)
    if args[10] is not None:
        args[10] = args[10] * info.batch_size
    return over_sequences(function, info, dims, args, sequences)
