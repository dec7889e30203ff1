"""What layers that attend to their own past share: the calls of their operators."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from rnnkern.nn.single import SingleLayer
from rnnkern.ops import Choice


class Attending(SingleLayer):
    """One layer around one operator, whose state is a named tuple of tensors."""

    weight_ih_l0: Tensor
    _operator: Callable  # of rnnkern.ops: (output, state), with return_memory=True what was attended to as well
    _states: int  # tensors in the state that a sequence begins with

    def _zeros(self, x: Tensor, batch: int) -> tuple[Tensor, ...]:
        return (x.new_zeros(batch, self.hidden_size),) * self._states

    def _call(self, input, state, reset) -> tuple[tuple, dict[str, Any]]:
        """The operator's arguments, time first and in the order of packed rows."""
        raise NotImplementedError

    def _run(self, input, state, reset) -> tuple[Any, Any]:
        args, options = self._call(input, state, reset)
        output, state = self._operator(*args, **options)
        return self._returned(input, output), self._returned_state(input, state)

    @torch.no_grad()
    def _attended(self, input, state, reset) -> Any:
        args, options = self._call(input, state, reset)
        _, _, memory = self._operator(*args, **options, return_memory=True)
        return type(memory)(*(self._returned(input, each) for each in memory))

    @torch.no_grad()
    def choose(self, input: Tensor | PackedSequence, state: Any = None, reset: Tensor | None = None) -> list[Choice]:
        """For :func:`rnnkern.ops.explain`: the choice, in a list, for arguments of :meth:`forward`. Runs no
        recurrence."""
        args, options = self._call(input, state, reset)
        return [self._operator.choose(*args, **options)]


def state_like(state: Any, u: Tensor) -> Any:
    """A state to begin with in the dtype of ``u``; one that a former call returned as it is."""
    return state if hasattr(state, "_fields") else tuple(part.to(u.dtype) for part in state)
