"""Base classes of the layers that have no counterpart in torch.nn: they check options and convert input and state."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from rnnkern.nn.ecosystem import Unquantized
from rnnkern.nn.recurrent import TimeFirst, reset_in_order
from rnnkern.ops import Choice


class Layers(Unquantized):
    """Layers whose state is a tuple of tensors."""

    input_size: int
    hidden_size: int
    batch_first: bool
    _batch_dim = 0  # batch dimension of the tensors of a state
    _plain: dict[str, Any]  # the options with their defaults
    _first = "weight_ih_l0"  # a parameter that every such layer has

    def __init__(self, sizes: dict[str, int], least: dict[str, int], choices: dict[str, tuple[str, tuple]]) -> None:
        """Checks and stores each size, which is at least 1 or the value in ``least``, and each choice."""
        super().__init__()
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int):
                raise TypeError(f"{name} should be of type int, got: {type(size).__name__}")
            if size < least.get(name, 1):
                raise ValueError(f"{name} must be at least {least.get(name, 1)}, got {size}")
            setattr(self, name, size)
        for name, (choice, there_are) in choices.items():
            if choice not in there_are:
                raise ValueError(f"{name} must be one of {there_are}, got {choice!r}")
            setattr(self, name, choice)

    @property
    def _dtype(self) -> torch.dtype:
        """dtype of the parameters; that of a weight that a hook has replaced is the dtype of the others."""
        found = self._parameters.get(self._first)
        return (next(self.parameters()) if found is None else found).dtype

    def _zeros(self, x: Tensor, batch: int) -> tuple[Tensor, ...]:
        """The initial state of ``batch`` sequences if the caller gives none."""
        raise NotImplementedError

    def _check_state(self, state: Any, batch: int | None) -> None:
        """Checks of a given state that the operator does not make; ``batch`` is None for unbatched input."""

    def _time_first(self, input, state, reset) -> TimeFirst:
        name = type(self).__name__
        batch_sizes = order = None
        packed = isinstance(input, PackedSequence)
        x = input.data if packed else input
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: `input` must be a tensor or a PackedSequence, got {type(x).__name__}")
        if x.dim() not in ((2,) if packed else (2, 3)) or x.shape[-1] != self.input_size:
            wanted = f"packed with {self.input_size} columns" if packed else f"(T, B, {self.input_size}), or without B"
            raise ValueError(f"{name}: `input` must be {wanted}, got {tuple(x.shape)}")
        if x.dtype != self._dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"{name}: `input` must have the dtype of the parameters, {self._dtype}, got {x.dtype}")
        unbatched = not packed and x.dim() == 2
        if packed:
            _, batch_sizes, order, _ = input
            steps, batch = batch_sizes.shape[0], int(batch_sizes[0])
        else:
            x = x.unsqueeze(1) if unbatched else x.transpose(0, 1) if self.batch_first else x
            steps, batch = x.shape[:2]
        if state is not None:
            self._check_state(state, None if unbatched else batch)
        if state is None:
            state = self._zeros(x, batch)
        elif unbatched:
            state = _each(state, lambda part: part.unsqueeze(self._batch_dim))
        elif order is not None:
            state = _each(state, lambda part: part.index_select(self._batch_dim, order))
        if reset is not None:
            reset = reset_in_order(self, reset, x, steps, None if unbatched else batch, batch_sizes, order)
        return TimeFirst(x, state, batch_sizes, reset)

    def _returned(self, input, rows: Tensor) -> Tensor | PackedSequence:
        """The operator's result for each step, in the layout of the caller's input."""
        if isinstance(input, PackedSequence):
            return input._replace(data=rows)
        if input.dim() == 2:
            return rows.squeeze(1)
        return rows.transpose(0, 1) if self.batch_first else rows

    def _returned_state(self, input, state: Any) -> Any:
        if isinstance(input, PackedSequence):
            inverse = input.unsorted_indices
            return state if inverse is None else _each(state, lambda part: part.index_select(self._batch_dim, inverse))
        if input.dim() == 3:
            return state
        return _each(state, lambda part: part.squeeze(self._batch_dim).clone())  # a view could not be detached in place

    def extra_repr(self) -> str:
        given = {name: getattr(self, name, plain) for name, plain in self._plain.items()}
        shown = (f", {name}={value}" for name, value in given.items() if value != self._plain[name])
        return f"{self.input_size}, {self.hidden_size}" + "".join(shown)


class SingleLayer(Layers):
    """One layer in one direction that wraps one operator; its state has a row for each sequence."""

    _operator: Callable  # a function of rnnkern.ops that returns (output, state)

    @property
    def _state_size(self) -> int:
        return self.hidden_size

    def _call(self, input, hx, reset) -> tuple[tuple, dict[str, Any]]:
        """Arguments of the operator, with time first and in the order of the packed rows."""
        raise NotImplementedError

    def _check_state(self, state: tuple[Tensor], batch: int | None) -> None:
        """Checks the shape of ``hx``, (B, H) or without a batch (H,)."""
        wanted = (self._state_size,) if batch is None else (batch, self._state_size)
        if not isinstance(state[0], Tensor):
            raise TypeError(
                f"{type(self).__name__}: `hx` must be a Tensor, a tuple of them, or a state that the layer returned "
                f"(of some sequences only: `state.select_batch(index)`), got {type(state[0]).__name__} in a tuple"
            )
        if tuple(state[0].shape) != wanted:
            raise ValueError(f"{type(self).__name__}: `hx` must be {wanted}, got {tuple(state[0].shape)}")

    @torch.no_grad()
    def _choose(self, input: Tensor | PackedSequence, hx: Any = None, reset: Tensor | None = None) -> list[Choice]:
        """A list with the :class:`Choice` for these arguments of :meth:`forward`, for :func:`rnnkern.ops.explain`. Runs
        no recurrence."""
        args, options = self._call(input, hx, reset)
        return [self._operator._choose(*args, **options)]


def _each(state: Any, change: Callable) -> Any:
    """Applies ``change`` to each tensor of a state."""
    changed = [change(part) if isinstance(part, Tensor) else part for part in state]
    return type(state)(*changed) if hasattr(state, "_fields") else tuple(changed)
