"""Methods of the states of attending recurrences, which are named tuples of tensors with B rows."""

from typing import Any, TypeVar

import torch
from torch import Tensor

State = TypeVar("State", bound=tuple)


def detach(self: State) -> State:
    """Returns the state detached from the graph, for truncated backpropagation through time."""
    return type(self)(*(part.detach() if isinstance(part, Tensor) else part for part in self))


def to(self: State, *args: Any, **kwargs: Any) -> State:
    """Like :meth:`torch.Tensor.to`; integer tensors change only their device."""
    device = torch.empty(0, device=self[0].device).to(*args, **kwargs).device

    def moved(part):
        if not isinstance(part, Tensor):
            return part
        return part.to(*args, **kwargs) if part.is_floating_point() else part.to(device)

    return type(self)(*map(moved, self))


def select_batch(self: State, index: Any) -> State:
    """Selects sequences by a slice, a list or tensor of indices, or a mask. (``state[i]`` selects a field of the
    tuple.)"""
    return type(self)(*(part[index] if isinstance(part, Tensor) else part for part in self))
