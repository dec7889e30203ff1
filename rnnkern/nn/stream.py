"""A stream calls a layer step by step: it carries the state, and reads the weights once."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Never

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.parametrize import type_before_parametrizations

from rnnkern.nn.filters import FilteredInput
from rnnkern.ops import recurrence
from rnnkern.ops._recurrence.stream import shared_pack
from rnnkern.ops.dispatch import no_autocast


class Stream:
    """A layer that is called step by step and carries its own state; ``layer.stream(batch_size)`` makes it.

    On a CPU, in float32 and float64, the outputs have the same bits as those of one call of the layer with the whole
    sequence, wherever it is cut. The layer runs as in ``eval()`` and without gradients. Its weights are read when the
    stream is made: parametrized ones are computed once, and the CPU kernel packs its copy once. If they have changed
    since, the next call warns and reads them again, and the state stays. PyTorch does not count writes to
    ``weight.data``: call :meth:`pack` after them.

    Streams of one layer are independent of each other, and each may be called in a thread of its own; the kernel does
    not hold the interpreter's lock. It uses several threads only where a step has enough work, and at most as many as
    :func:`torch.get_num_threads` said when the weights were read.

    >>> lstm = rnnkern.nn.LSTM(8, 16)
    >>> x, stream = torch.randn(50, 1, 8), lstm.stream()
    >>> y = torch.stack([stream(x_t) for x_t in x])
    >>> torch.equal(y, lstm(x)[0])
    True
    """

    def __init__(self, layer: Module, batch_size: int = 1) -> None:
        self._name = f"{type_before_parametrizations(layer).__name__}.stream"
        if isinstance(batch_size, bool) or not isinstance(batch_size, int):
            raise TypeError(f"{self._name}: `batch_size` should be of type int, got: {type(batch_size).__name__}")
        if batch_size < 1:
            raise ValueError(f"{self._name}: `batch_size` must be at least 1, got {batch_size}")
        if getattr(layer, "bidirectional", False):
            raise ValueError(f"{self._name}: `bidirectional` must be False, got True: outputs depend on later steps")
        self._layer, self._batch_size, self._engine = layer, batch_size, None
        self.pack()

    def pack(self) -> None:
        """Reads the weights of the layer again. The state stays."""
        held = [values for module in self._layer.modules() for values in (module._parameters, module._buffers)]
        self._seen = [
            (values, name, x, x._version, x.data_ptr())
            for values in held
            for name, x in values.items()
            if x is not None and not x.is_inference()  # a tensor made in inference mode has no version
        ]
        like = next(self._layer.parameters())
        with torch.inference_mode(False), torch.no_grad(), no_autocast(like.device.type):
            x = like.new_zeros(1, self._batch_size, self._layer.input_size, dtype=like.dtype.to_real())
            for hook in self._layer._forward_pre_hooks.values():  # some compute weights
                hook(self._layer, (x.transpose(0, 1) if self._layer.batch_first else x,))
            made = self._layer._engine(x)
            if type(made) is type(self._engine):
                made.carry_on(self._engine)
            elif self._engine is not None:
                made.begin(self._engine.hx())
        self._like, self._engine, self._advance = x, made, made.advance

    def __call__(self, x: Tensor) -> Tensor:
        """Computes the next step, or the next steps.

        Args:
            x: (B, I), or several steps as (T, B, I), or (B, T, I) if the layer has ``batch_first``, with the dtype and
                on the device of the parameters.

        Returns:
            The output of the layer, a new tensor shaped like ``x`` with the columns of the output.

        Raises:
            ValueError: ``x`` has the wrong shape.
            TypeError: ``x`` has the wrong type, dtype or device.
        """
        for values, name, seen, version, address in self._seen:
            if values.get(name) is not seen or seen.data_ptr() != address or seen._version != version:
                self._pack_again()
                break
        try:
            return self._advance(x.detach() if x.requires_grad else x)
        except Exception:
            self._check(x)
            raise

    def _pack_again(self) -> None:
        changed = "the layer's weights have changed since the stream read them; it reads them again"
        warnings.warn(f"{self._name}: {changed}, which takes longer than a step", stacklevel=3)
        self.pack()

    def _check(self, x: Any) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"{self._name}: the input must be a tensor, got {type(x).__name__}")
        batch, columns, first = self._batch_size, self._layer.input_size, self._layer.batch_first
        if x.dim() not in (2, 3) or x.shape[0 if first else -2] != batch or x.shape[-1] != columns:
            several = f"({batch}, T, {columns})" if first else f"(T, {batch}, {columns})"
            raise ValueError(f"{self._name}: the input must be ({batch}, {columns}) or {several}, got {tuple(x.shape)}")
        for what in ("dtype", "device"):
            if (given := getattr(x, what)) != (wanted := getattr(self._like, what)):
                raise TypeError(f"{self._name}: the input must have {what} {wanted}, got {given}")

    @property
    def state(self) -> Any:
        """A copy of the state after the last step, as ``forward`` of the layer returns it; zeros or None at the
        beginning of a sequence. Set it to continue another sequence, with what ``hx`` of ``forward`` may be.

        ``forward`` returns less than the linear filters (Momentum, NAG) need for the same bits, so after it was set a
        stream of such a layer agrees with the whole sequence only as two calls of the layer do.
        """
        with torch.no_grad():
            return self._engine.hx()

    @state.setter
    def state(self, hx: Any) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self._engine.begin(hx)

    def reset(self, mask: Tensor | None = None) -> None:
        """Starts a new sequence at the next step.

        Args:
            mask: bool, (B,), on the device of the parameters: the sequences that start again. None means all.

        Raises:
            TypeError: ``mask`` is not a bool tensor.
            ValueError: ``mask`` has the wrong shape.
        """
        if mask is None:
            self.state = None
            return
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(f"{self._name}: `mask` must be a bool tensor, got {got}")
        if mask.shape != (self._batch_size,):
            raise ValueError(f"{self._name}: `mask` must be ({self._batch_size},), got {tuple(mask.shape)}")
        with torch.inference_mode(False), torch.no_grad():
            self._engine.reset(mask)

    def __reduce__(self) -> Never:
        raise TypeError(f"{self._name}: a stream cannot be copied or saved; make a new one and set its `state`")

    def __repr__(self) -> str:
        return f"{self._name}(batch_size={self._batch_size})"


class Streaming:
    """Mixin of the layers with a state."""

    def stream(self, batch_size: int = 1) -> Stream:
        """Returns a :class:`rnnkern.nn.Stream`, which is called step by step and carries the state.

        Args:
            batch_size: B, the number of sequences that advance together.

        Raises:
            TypeError, ValueError: ``batch_size`` is not a positive int, or the layer is bidirectional.
        """
        return Stream(self, batch_size)


class Packed:
    """Steps of recurrent layers by one operator, which holds packed weights and the states."""

    def __init__(self, layer: Module, x: Tensor, calls: list[dict[str, Any]]) -> None:
        self._layer, self._x = layer, x
        self._pack = shared_pack(layer, layer._cell, x, calls)
        step, self._states = self._pack.stream()
        self.advance = step
        if layer.batch_first:
            self.advance = lambda x: step(x.transpose(0, 1)).transpose(0, 1) if x.dim() == 3 else step(x)

    def hx(self) -> Any:
        states, each = [state.to(self._x.dtype) for state in self._states], self._layer._states
        return _joined([states[k : k + each] for k in range(0, len(states), each)])

    def begin(self, hx: Any) -> None:
        self._hold(chain(*_initial(self._layer, self._x, hx)))

    def reset(self, mask: Tensor) -> None:
        self._hold(_zero_where(mask, self._states))

    def carry_on(self, before: "Packed") -> None:
        self._hold(before._states)

    def _hold(self, values: Iterable[Tensor]) -> None:
        for state, value in zip(self._states, values, strict=True):
            state.copy_(value)


class LayerByLayer:
    """Steps of recurrent layers by the calls that ``forward`` makes, with weights that are read once."""

    def __init__(self, layer: Module, x: Tensor, calls: list[dict[str, Any]]) -> None:
        self._layer, self._x, self._calls = layer, x, calls
        self.begin(None)

    def advance(self, x: Tensor) -> Tensor:
        return in_layout(self._advance, x, self._layer.batch_first, self._x.shape[1])

    def _advance(self, rows: Tensor) -> Tensor:
        layer = self._layer
        for k, call in enumerate(self._calls):
            call = call | {"state": self._states[k]} | ({"filtered": self._filtered[k]} if layer.filter else {})
            [(rows, final)] = layer._layer(rows, [call], recurrence, None)
            self._states[k], kept = tuple(final[: layer._states]), tuple(final[layer._states :])
            self._filtered[k] = FilteredInput(*kept) if isinstance(self._filtered[k], FilteredInput) else kept
        return rows

    def hx(self) -> Any:
        states = self._states
        if self._layer.filter:
            moments = (
                self._layer.filter.moments(filtered, call["weight_ih"], call["bias_ih"])
                for filtered, call in zip(self._filtered, self._calls, strict=True)
            )
            states = [state + more for state, more in zip(states, moments, strict=True)]
        return _joined(states)

    def begin(self, hx: Any) -> None:
        plain, filter, given = self._layer._states, self._layer.filter, _initial(self._layer, self._x, hx)
        self._states = [tuple(state[:plain]) for state in given]
        self._filtered = [tuple(state[plain:]) for state in given]
        for k, call in enumerate(self._calls):
            if filter and filter.linear and not self._filtered[k]:
                self._filtered[k] = filter.first_input(self._states[k][0], call["weight_ih"], call["bias_ih"])

    def reset(self, mask: Tensor) -> None:
        self._states = [tuple(_zero_where(mask, states)) for states in self._states]
        self._filtered = [
            FilteredInput(*zeroed) if isinstance(states, FilteredInput) else tuple(zeroed)
            for states, zeroed in ((states, _zero_where(mask, states)) for states in self._filtered)
        ]

    def carry_on(self, before: "LayerByLayer") -> None:
        self._states, self._filtered = before._states, before._filtered


def in_layout(advance: Callable[[Tensor], Tensor], x: Tensor, batch_first: bool, batch: int) -> Tensor:
    """Calls ``advance`` with steps in time order, (T, B, I), whatever the layout of ``x`` is."""
    swap = batch_first and x.dim() == 3
    rows = x.transpose(0, 1) if swap else x if x.dim() == 3 else x.unsqueeze(0)
    if x.dim() not in (2, 3) or rows.shape[1] != batch:
        raise ValueError("the input has the wrong shape")
    with torch.no_grad(), no_autocast(x.device.type):
        y = advance(rows)
    return y.transpose(0, 1) if swap else y if x.dim() == 3 else y.squeeze(0)


def _initial(layer: Module, x: Tensor, hx: Any) -> list[tuple[Tensor, ...]]:
    """The initial states of each layer."""
    return layer._check(x.transpose(0, 1) if layer.batch_first else x, hx, None).state


def _joined(layers: Sequence[Sequence[Tensor]]) -> Any:
    """The states of all layers as ``forward`` returns them."""
    states = tuple(map(torch.stack, zip(*layers, strict=True)))
    return states if len(states) > 1 else states[0]


def _zero_where(mask: Tensor, states: Iterable[Tensor]) -> list[Tensor]:
    return [state.masked_fill(mask.view(-1, *[1] * (state.dim() - 1)), 0) for state in states]
