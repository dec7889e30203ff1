"""The layers and directions of a recurrent module as arguments of the operators, and the values of its units."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.nn import Module, RNNBase

from rnnkern.analysis._gains import GATES, ROWS
from rnnkern.analysis._spectral import UnitSamples
from rnnkern.ops import recurrence
from rnnkern.ops._recurrence.recurrence_tangent import recurrence_adjoint
from rnnkern.reference._recurrence import cell_of, product_of

DTYPES = (torch.float32, torch.float64)


class Layer(NamedTuple):
    """A layer and direction in evaluation mode: zoneout has its mean, and there is no dropout."""

    cell: str
    weight_ih: Tensor
    bias_ih: Tensor | None
    weights: dict[str, Any]
    """``R``, ``bias``, ``params``, ``zoneout`` and ``reverse``, as the operators take them."""
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
        if self.filter is not None:
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


def cell_of_module(module: Module) -> str:
    """Name of the cell that a recurrent layer or cell module of rnnkern or torch.nn runs; "" if it is none of them."""
    found = getattr(module, "_cell", "")
    if isinstance(found, str) and found:
        return found
    kinds = {torch.nn.LSTM: "lstm", torch.nn.LSTMCell: "lstm", torch.nn.GRU: "gru", torch.nn.GRUCell: "gru"}
    kinds |= {torch.nn.RNN: getattr(module, "nonlinearity", ""), torch.nn.RNNCell: getattr(module, "nonlinearity", "")}
    name = next((name for kind, name in kinds.items() if isinstance(module, kind)), "")
    return "lstm_projected" if getattr(module, "proj_size", 0) else name


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
        if getattr(module, "layer_norm", False):
            params, bias_ih, bias = module._params_of_norms(params, bias_ih, bias), None, None
        named = {"R": R, "bias": bias, "params": params, "reverse": k % directions == 1}
        named["zoneout"] = getattr(module, "zoneout", 0.0)
        layers.append(Layer(cell, weight_ih, bias_ih, named, filter))
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


def input_or_zeros(caller: str, module: Module, x: Tensor | None, steps: int | None, batch: int = 1) -> Tensor:
    """The input as (T, B, I), or zeros for an autonomous network."""
    if (x is None) == (steps is None):
        got = "neither" if x is None else "both"
        raise ValueError(f"{caller}: exactly one of `x` and `steps` must be given, got {got}")
    if x is not None:
        return input_of(caller, module, x)
    for name, value in (("steps", steps), ("batch", batch)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{caller}: `{name}` must be a positive int, got {value}")
    return module.all_weights[0][0].new_zeros(()).expand(steps, batch, module.input_size)


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


# ---- values of the units at one step


def theory_cell(caller: str, module: Module) -> str:
    """The module's cell; raises ValueError if the theory does not have it."""
    cell = cell_of_module(module) if isinstance(module, Module) else ""
    if cell not in GATES:
        got = cell or type(module).__name__
        raise ValueError(f"{caller}: `module` must run one of the cells {', '.join(GATES)}, got {got}")
    for option in ("zoneout", "filter"):
        value = getattr(module, option, None)
        if any(value) if isinstance(value, tuple) else value:
            raise ValueError(f"{caller}: `module` must have no {option}, got {value}")
    return cell


@torch.no_grad()
def unit_samples(
    module: Module, x: Tensor | None = None, *, steps: int | None = None, hx: Any = None, layer: int = 0,
    generator: Generator | None = None,
) -> UnitSamples:  # fmt: skip
    """Runs a recurrent layer and returns the values of its units at the last step, for :func:`spectral_boundary` and
    related functions.

    Args:
        module: an LSTM, a GRU or an RNN with tanh, of rnnkern.nn or torch.nn, with one direction; it is read in
            float64.
        x: input (T, B, I), or (B, T, I) with ``batch_first``. The default is no input for ``steps`` steps.
        steps: T, at least 1; required without ``x``.
        hx: initial state as the module takes it: (layers, B, H), of an LSTM a pair. The default is zero with an input
            and a random state without one.
        layer: the layer whose units are returned.
        generator: CPU generator for the random state. The default is torch's global generator.

    Returns:
        A :class:`UnitSamples` of M = B*H values.

    Raises:
        ValueError: the module runs another cell, is bidirectional, or has zoneout or a filter; not exactly one of ``x``
            and ``steps`` is given; or ``steps``, ``layer`` or a shape is wrong.

    >>> samples = unit_samples(rnnkern.nn.GRU(1, 50), steps=10)
    >>> samples.cell, samples.old.shape, samples.gates["z"].shape
    ('gru', torch.Size([50]), torch.Size([50]))
    """
    caller = "unit_samples"
    cell = theory_cell(caller, module)
    module = copy.deepcopy(module).to("cpu", torch.float64)
    layers = layers_of(caller, module)
    check_place(caller, layers, layer, 0)
    if len(layers[0]) > 1:
        raise ValueError(f"{caller}: `module` must have one direction, got a bidirectional one")
    random = x is None and hx is None
    x = input_or_zeros(caller, module, None if x is None else x.to("cpu", torch.float64), steps)
    if not x.shape[0] * x.shape[1]:
        raise ValueError(f"{caller}: `x` must not be empty, got T = {x.shape[0]} and B = {x.shape[1]}")
    states = states_of(caller, layers, hx, x)
    for k, (each,) in enumerate(layers[: layer + 1]):
        R, bias, state = each.weights["R"], each.weights["bias"], states[k][0].cell
        if random:
            first, *rest = (torch.randn(s.shape, generator=generator, dtype=torch.float64) for s in state)
            state = (torch.tanh(first) / len(state), *rest)
        u = F.linear(x, each.weight_ih, each.bias_ih)
        if k < layer:
            x, _ = recurrence(cell, u, R, state, bias=bias)
    if len(u) > 1:
        _, state = recurrence(cell, u[:-1], R, state, bias=bias)
    return _one_step(cell, u[-1], R, bias, state)


def _one_step(cell: str, u: Tensor, R: Tensor, bias: Tensor, state: tuple[Tensor, ...]) -> UnitSamples:
    """The values of one step; (B, H) each, returned flat."""
    names, h = ROWS[cell], state[0]
    product = product_of(R, bias, len(names), None, None)
    pre = dict(zip(names, (u + product(h)).chunk(len(names), dim=-1), strict=True))
    w = None
    if cell == "gru":
        w = product(h, 2, 3)
        pre["h"] = u.chunk(3, dim=-1)[2] + torch.sigmoid(pre["r"]) * w
    elif cell == "gru_reset_before":
        pre["h"] = u.chunk(3, dim=-1)[2] + product(torch.sigmoid(pre["r"]) * h, 2, 3)
    new = torch.tanh(pre["h"])
    if cell == "lstm":
        new = torch.sigmoid(pre["f"]) * state[1] + torch.sigmoid(pre["i"]) * new
    flat = {name: value.flatten() for name, value in pre.items()}
    return UnitSamples(cell, state[-1].flatten(), flat, new.flatten(), None if w is None else w.flatten())
