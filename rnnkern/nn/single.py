"""Base classes of layers that torch.nn lacks check options, and convert input and state for the operators."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Module, Parameter, init
from torch.nn.utils.parametrize import type_before_parametrizations
from torch.nn.utils.rnn import PackedSequence

from rnnkern.nn.ecosystem import Unquantized, refuse_or_trace, shown
from rnnkern.nn.recurrent import TimeFirst, reset_in_order
from rnnkern.nn.stream import Streaming, in_layout
from rnnkern.ops import Choice
from rnnkern.ops.dispatch import autocasts


def empty_parameter(*shape: int, device: Any, dtype: torch.dtype | None) -> Parameter:
    """A parameter without values."""
    return Parameter(torch.empty(shape, device=device, dtype=dtype))


def uniform_(size: int, *weights: Tensor | None) -> None:
    """Draws the weights that are there from U(-size^-1/2, size^-1/2)."""
    for weight in weights:
        if weight is not None:
            init.uniform_(weight, -(size**-0.5), size**-0.5)


def check_positive(name: str, value: Any, zero: bool = False) -> None:
    """Checks that an option is a finite positive number, or with ``zero`` one of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} should be of type float, got: {type(value).__name__}")
    if not 0 <= value < float("inf") or (value == 0 and not zero):
        raise ValueError(f"{name} must be {'at least 0' if zero else 'positive'}, got {value}")


class Layers(Unquantized):
    """Layers whose state is a tuple of tensors."""

    input_size: int
    hidden_size: int
    batch_first: bool
    _batch_dim = 0  # batch dimension of the tensors of a state
    _plain: dict[str, Any]  # the options with their defaults
    _first = "weight_ih_l0"  # a parameter that every such layer has
    _complex = False  # whether the state is complex

    def __init__(
        self, sizes: dict[str, int], choices: dict[str, tuple[str, tuple]] | None = None,
        least: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Checks and stores each size, which is at least 1 or the value in ``least``, and each choice."""
        super().__init__()
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int):
                raise TypeError(f"{name} should be of type int, got: {type(size).__name__}")
            if size < (smallest := (least or {}).get(name, 1)):
                raise ValueError(f"{name} must be at least {smallest}, got {size}")
            setattr(self, name, size)
        for name, (choice, there_are) in (choices or {}).items():
            if choice not in there_are:
                raise ValueError(f"{name} must be one of {there_are}, got {choice!r}")
            setattr(self, name, choice)

    @property
    def _dtype(self) -> torch.dtype:
        """dtype of the parameters; that of a weight that a hook has replaced is the dtype of the others."""
        found = self._parameters.get(self._first)
        return (next(self.parameters()) if found is None else found).dtype

    @property
    def _state_dtype(self) -> torch.dtype:
        return torch.promote_types(self._dtype, torch.complex64) if self._complex else self._dtype

    def _state_shape(self, batch: int | None) -> tuple[int, ...]:
        """The shape of the first tensor of a state; ``batch`` is None for unbatched input."""
        return (self.hidden_size,) if batch is None else (batch, self.hidden_size)

    def _zeros(self, x: Tensor, batch: int) -> tuple[Tensor, ...]:
        """The initial state of ``batch`` sequences if the caller gives none."""
        return (x.new_zeros(self._state_shape(batch), dtype=self._state_dtype),)

    def _check_state(self, state: tuple[Any, ...], batch: int | None) -> None:
        """Checks of a given state that the operator does not make."""
        name, hx, wanted = type_before_parametrizations(self).__name__, state[0], self._state_shape(batch)
        if not isinstance(hx, Tensor):
            raise TypeError(f"{name}: `hx` must be a tensor, got {type(hx).__name__}")
        if tuple(hx.shape) != wanted:
            raise ValueError(f"{name}: `hx` must be {wanted}, got {tuple(hx.shape)}")
        if self._complex and hx.dtype != self._state_dtype:
            raise TypeError(f"{name}: `hx` must be of dtype {self._state_dtype}, got {hx.dtype}")

    def _time_first(self, input, state, reset) -> TimeFirst:
        name = type_before_parametrizations(self).__name__
        batch_sizes = order = None
        packed = isinstance(input, PackedSequence)
        x = input.data if packed else input
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: `input` must be a tensor or a PackedSequence, got {type(x).__name__}")
        if x.dim() not in ((2,) if packed else (2, 3)) or x.shape[-1] != self.input_size:
            wanted = f"packed with {self.input_size} columns" if packed else f"(T, B, {self.input_size}), or without B"
            raise ValueError(f"{name}: `input` must be {wanted}, got {tuple(x.shape)}")
        if x.dtype != self._dtype and not autocasts(x.device.type):
            raise TypeError(f"{name}: `input` must have the dtype of the parameters, {self._dtype}, got {x.dtype}")
        unbatched = not packed and x.dim() == 2
        if packed:
            _, batch_sizes, order, _ = input
            batch = int(batch_sizes[0])
        else:
            x = x.unsqueeze(1) if unbatched else x.transpose(0, 1) if self.batch_first else x
            batch = x.shape[1]
        if state is None:
            state = self._zeros(x, batch)
        else:
            self._check_state(state, None if unbatched else batch)
            if unbatched:
                state = _each(state, lambda part: part.unsqueeze(self._batch_dim))
            elif order is not None:
                state = _each(state, lambda part: part.index_select(self._batch_dim, order))
        if reset is not None:
            reset = reset_in_order(self, reset, input)
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
        return f"{self.input_size}, {self.hidden_size}{shown(self, self._plain)}"


class Whole:
    """Steps of a layer by calls of its ``forward``, with parametrized weights that are computed once."""

    def __init__(self, layer: Module, x: Tensor) -> None:
        self.layer, self._batch = layer, x.shape[1]
        self.begin(None)

    def advance(self, x: Tensor) -> Tensor:
        return in_layout(self._advance, x, self.layer.batch_first, self._batch)

    def _advance(self, rows: Tensor) -> Tensor:
        swap, reset = self.layer.batch_first, None
        if self._mask is not None and len(rows):
            reset = self._mask.new_zeros(rows.shape[:2])
            reset[0] = self._mask
            reset = reset.t() if swap else reset
        y, self._state = self.layer.forward(rows.transpose(0, 1) if swap else rows, self._state, reset)
        self._mask = self._mask if reset is None else None
        return y.transpose(0, 1) if swap else y

    def hx(self) -> Any:
        return _copied(self._state)

    def begin(self, hx: Any) -> None:
        self._state, self._mask = _copied(hx), None

    def reset(self, mask: Tensor) -> None:
        self._mask = mask.clone() if self._mask is None else self._mask | mask

    def carry_on(self, before: "Whole") -> None:
        self._state, self._mask = before._state, before._mask


class SingleLayer(Streaming, Layers):
    """One layer in one direction that wraps one operator; its state has a row for each sequence."""

    _operator: Callable  # a function of rnnkern.ops that returns (output, state)

    def _call(self, input, hx, reset) -> tuple[tuple, dict[str, Any]]:
        """Arguments of the operator, with time first and in the order of the packed rows."""
        raise NotImplementedError

    def _engine(self, x: Tensor) -> Whole:
        """What computes the steps of a stream, for an input like ``x``, (1, B, I)."""
        return Whole(with_constant_weights(self), x)

    @torch.no_grad()
    def _choose(self, input: Tensor | PackedSequence, hx: Any = None, reset: Tensor | None = None) -> list[Choice]:
        """A list with the :class:`Choice` for these arguments of :meth:`forward`, for :func:`rnnkern.ops.explain`. Runs
        no recurrence."""
        args, options = self._call(input, hx, reset)
        return [self._operator._choose(*args, **options)]


class Attending(SingleLayer):
    """A layer that wraps one operator whose state is a named tuple of tensors."""

    weight_ih_l0: Tensor
    _operator: Callable  # with return_memory=True it also returns what each step attended to
    _states: int  # number of tensors in an initial state

    def _zeros(self, x: Tensor, batch: int) -> tuple[Tensor, ...]:
        return super()._zeros(x, batch) + (x.new_zeros(batch, self.hidden_size),) * (self._states - 1)

    def _check_state(self, state: tuple[Any, ...], batch: int | None) -> None:
        if not isinstance(state[0], Tensor):
            raise TypeError(
                f"{type_before_parametrizations(self).__name__}: `hx` must be a Tensor, a tuple of them, or a state "
                f"that the layer returned (of some sequences only: `state.select_batch(index)`), got "
                f"{type(state[0]).__name__} in a tuple"
            )
        super()._check_state(state, batch)

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


def _each(state: Any, change: Callable) -> Any:
    """Applies ``change`` to each tensor of a state."""
    changed = [change(part) if isinstance(part, Tensor) else part for part in state]
    return type(state)(*changed) if hasattr(state, "_fields") else tuple(changed)


def _copied(state: Any) -> Any:
    return state if state is None else state.clone() if isinstance(state, Tensor) else _each(state, Tensor.clone)


def with_constant_weights(layer: Module) -> Module:
    """A copy of the layer with the same weights, and the present values of the parametrized ones."""
    cls = type_before_parametrizations(layer)
    made = cls.__new__(cls)
    made.__dict__ = layer.__dict__ | {"_modules": {k: m for k, m in layer._modules.items() if k != "parametrizations"}}
    values = {name: getattr(layer, name).detach() for name in getattr(layer, "parametrizations", ())}
    made.__dict__["_parameters"] = layer._parameters | values
    return made
