"""Base class of the layers that attend to their own past states: it calls their operators."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from rnnkern.nn.ecosystem import refuse_or_trace
from rnnkern.nn.single import SingleLayer


class Attending(SingleLayer):
    """A layer that wraps one operator whose state is a named tuple of tensors."""

    weight_ih_l0: Tensor
    _operator: Callable  # with return_memory=True it also returns what each step attended to
    _states: int  # number of tensors in an initial state

    def _zeros(self, x: Tensor, batch: int) -> tuple[Tensor, ...]:
        return (x.new_zeros(batch, self.hidden_size),) * self._states

    def _run(self, input, hx, reset, unknown) -> tuple[Any, Any]:
        if isinstance(input, Proxy) or isinstance(hx, Proxy) or unknown:
            return refuse_or_trace(self, unknown, input, hx, reset)
        args, options = self._call(input, hx, reset)
        output, state = self._operator(*args, **options)
        return self._returned(input, output), self._returned_state(input, state)

    @torch.no_grad()
    def _attended(self, input, hx, reset) -> Any:
        args, options = self._call(input, hx, reset)
        _, _, memory = self._operator(*args, **options, return_memory=True)
        return type(memory)(*(self._returned(input, each) for each in memory))


def state_like(state: Any, u: Tensor) -> Any:
    """An initial state, cast to the dtype of ``u``; a state that an earlier call returned, unchanged."""
    return state if hasattr(state, "_fields") else tuple(part.to(u.dtype) for part in state)


def without_layers(hx: Any, input: Tensor | PackedSequence) -> Any:
    """Turns an initial state in the layout of torch.nn, (1, B, H), into that of the operators, (B, H)."""
    if hx is None or hasattr(hx, "_fields"):
        return hx
    rank = 1 if isinstance(input, Tensor) and input.dim() == 2 else 2
    parts = (hx,) if isinstance(hx, Tensor) else hx
    return tuple(part.squeeze(0) if isinstance(part, Tensor) and part.dim() > rank else part for part in parts)
