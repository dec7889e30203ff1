"""The layers and directions of a recurrent module, as arguments of the operators."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module, RNNBase

from rnnkern.analysis._samples import cell_of_module
from rnnkern.ops import recurrence
from rnnkern.ops._recurrence.recurrence_tangent import recurrence_adjoint
from rnnkern.reference._recurrence import cell_of

DTYPES = (torch.float32, torch.float64)


class Layer(NamedTuple):
    """A layer and direction in evaluation mode: zoneout has its mean, and there is no dropout."""

    cell: str
    weight_ih: Tensor
    bias_ih: Tensor | None
    weights: dict[str, Any]
    """``R``, ``bias``, ``params``, ``zoneout`` and ``reverse``, as the operators take them."""
    gain: Tensor | None
    """Of the LayerNorm of W x."""
    filter: Any
    """A filter of the input projection with a state, or None."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each state tensor."""
        facts = cell_of(self.cell)
        hidden = self.weight_ih.shape[0] // facts.gates
        width = self.weights["params"][0].shape[0] if self.cell == "lstm_projected" else hidden
        return (width, *[hidden] * (facts.states - 1))

    def projected(self, x: Tensor, kept: tuple[Tensor, ...]) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
        """The arguments of the operators for an input (T, B, I) but the state; ``kept`` is the state of the filter,
        which is returned as it is after the last step."""
        call = {"cell": self.cell, **self.weights}
        if self.gain is not None:
            u = F.layer_norm(F.linear(x, self.weight_ih), self.gain.shape, self.gain, self.bias_ih)
        elif self.filter is not None:
            u, kept = self.filter(F.linear(x, self.weight_ih, self.bias_ih), kept, None, None, self.weights["reverse"])
        else:
            return call | {"u": x, "weight_ih": self.weight_ih, "bias_ih": self.bias_ih}, kept
        return call | {"u": u}, kept

    def run(self, x: Tensor, state: "State") -> tuple[Tensor, "State"]:
        """The output (T, B, H) and the final state."""
        call, kept = self.projected(x, state.kept)
        h, final = recurrence(**call, state=state.cell)
        return h, State(final, kept)

    def adjoint(self, x: Tensor, state: "State", gradient: Callable[[Tensor], Tensor]) -> Tensor:
        """The gradient of a loss with respect to h of every step, through all later steps, (T, B, H). ``gradient`` is
        called with the output, and returns the derivative of the loss by it."""
        call, _ = self.projected(x, state.kept)
        return recurrence_adjoint(gradient, **call, state=state.cell)


class State(NamedTuple):
    """The state of a :class:`Layer`, tensors (B, H)."""

    cell: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]
    """The state of the filter; empty for zeros."""


def layers_of(caller: str, module: Module) -> list[list[Layer]]:
    """The directions of each layer, with constant weights.

    Raises:
        ValueError: the module is no recurrent layer whose next state is a function of h (and c) and the input.
        TypeError: its dtype is not float32 or float64.
    """
    cell = cell_of_module(module) if isinstance(module, RNNBase) else ""
    if not cell:
        raise ValueError(
            f"{caller}: `module` must be an RNN, LSTM or GRU of torch.nn, or a layer of rnnkern.nn with the same "
            f"attributes, got {type(module).__name__}"
        )
    weights = module.all_weights
    if weights[0][0].dtype not in DTYPES:
        raise TypeError(f"{caller}: `module` must be float32 or float64, got {weights[0][0].dtype}")
    filter = getattr(module, "filter", None)
    if filter is not None and not filter.states:
        raise ValueError(f"{caller}: `module` must have no filter that counts steps, got {filter}")
    directions = 2 if module.bidirectional else 1
    layers = []
    for k, tensors in enumerate(weights):
        weight_ih, R, *rest = [weight.detach() for weight in tensors]
        bias_ih, bias = rest[:2] if module.bias else (None, None)
        params = tuple(rest[2:] if module.bias else rest)
        gain, params = (params[0], params[1:]) if getattr(module, "layer_norm", False) else (None, params)
        named = {"R": R, "bias": bias, "params": params, "reverse": k % directions == 1}
        named["zoneout"] = getattr(module, "zoneout", 0.0)
        layers.append(Layer(cell, weight_ih, bias_ih, named, gain, filter))
    return [layers[k : k + directions] for k in range(0, len(layers), directions)]


def input_of(caller: str, module: Module, x: Tensor, name: str = "x") -> Tensor:
    """The input as (T, B, I)."""
    symbols = "(B, T, I)" if module.batch_first else "(T, B, I)"
    weight = module.all_weights[0][0]
    if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != module.input_size:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{caller}: `{name}` must be {symbols} with I = {module.input_size}, got {got}")
    if (x.dtype, x.device) != (weight.dtype, weight.device):
        raise TypeError(
            f"{caller}: `{name}` must have dtype {weight.dtype} and device {weight.device} like the module, got "
            f"{x.dtype} and {x.device}"
        )
    return x.transpose(0, 1) if module.batch_first else x


def states_of(caller: str, layers: Sequence[Sequence[Layer]], hx: Any, x: Tensor) -> list[list[State]]:
    """The initial state of each layer and direction, from ``hx`` as the module takes it; None means zeros."""
    flat = [layer for directions in layers for layer in directions]
    widths, batch = flat[0].widths, x.shape[1]
    if hx is None:
        states = [State(tuple(x.new_zeros(batch, width) for width in widths), ()) for _ in flat]
    else:
        given = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        extra = [flat[0].weight_ih.shape[0]] * (len(flat[0].filter.states) if flat[0].filter is not None else 0)
        wanted = [(len(flat), batch, width) for width in (*widths, *extra)]
        wanted = wanted if len(given) == len(wanted) else wanted[: len(widths)]
        got = [tuple(s.shape) for s in given]
        if got != wanted:
            raise ValueError(f"{caller}: `hx` must have tensors of the shapes {wanted}, got {got}")
        given = tuple(s.detach().to(x) for s in given)
        states = [State(tuple(s[k] for s in given[: len(widths)]), tuple(s[k] for s in given[len(widths) :]))
                  for k in range(len(flat))]  # fmt: skip
    directions = len(layers[0])
    return [states[k : k + directions] for k in range(0, len(states), directions)]


def check_place(caller: str, layers: Sequence[Sequence[Layer]], layer: int, direction: int) -> None:
    for name, value, count in (("layer", layer, len(layers)), ("direction", direction, len(layers[0]))):
        if not 0 <= value < count:
            raise ValueError(f"{caller}: `{name}` must be in [0, {count}), got {value}")
