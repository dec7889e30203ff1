"""What the states of attending recurrences can do besides being tuples of tensors with B rows each."""

from typing import Any, TypeVar

import torch
from torch import Tensor

State = TypeVar("State", bound=tuple)


def detach(self: State) -> State:
    """The same state outside the graph, as between the parts of a sequence in truncated backpropagation."""
    return type(self)(*(part.detach() if isinstance(part, Tensor) else part for part in self))


def to(self: State, *args: Any, **kwargs: Any) -> State:
    """As :meth:`torch.Tensor.to`; integers change their device alone."""
    device = torch.empty(0, device=self[0].device).to(*args, **kwargs).device

    def moved(part):
        if not isinstance(part, Tensor):
            return part
        return part.to(*args, **kwargs) if part.is_floating_point() else part.to(device)

    return type(self)(*map(moved, self))


def select_batch(self: State, index: Any) -> State:
    """Some of the sequences, by a slice, a list or a tensor of indices, or a mask. (An index in brackets is the
    tuple's.)"""
    return type(self)(*(part[index] if isinstance(part, Tensor) else part for part in self))
