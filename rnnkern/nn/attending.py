"""What layers that attend to their own past share: the calls of their operators."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rnnkern.nn.single import SingleLayer


class Attending(SingleLayer):
    """One layer around one operator, whose state is a named tuple of tensors."""

    weight_ih_l0: Tensor
    _operator: Callable  # with return_memory=True it gives what was attended to as well
    _states: int  # tensors in the state that a sequence begins with

    def _zeros(self, x: Tensor, batch: int) -> tuple[Tensor, ...]:
        return (x.new_zeros(batch, self.hidden_size),) * self._states

    def _run(self, input, state, reset) -> tuple[Any, Any]:
        args, options = self._call(input, state, reset)
        output, state = self._operator(*args, **options)
        return self._returned(input, output), self._returned_state(input, state)

    @torch.no_grad()
    def _attended(self, input, state, reset) -> Any:
        args, options = self._call(input, state, reset)
        _, _, memory = self._operator(*args, **options, return_memory=True)
        return type(memory)(*(self._returned(input, each) for each in memory))


def state_like(state: Any, u: Tensor) -> Any:
    """A state to begin with in the dtype of ``u``; one that a former call returned as it is."""
    return state if hasattr(state, "_fields") else tuple(part.to(u.dtype) for part in state)
