"""Values of the units of a network at one step."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.nn import Module

from rnnkern.analysis._gains import GATES, ROWS
from rnnkern.analysis._spectral import UnitSamples
from rnnkern.ops import recurrence
from rnnkern.reference._recurrence import CELLS, product_of


def cell_of_module(module: Module) -> str:
    """Name of the cell that a recurrent layer or cell module of rnnkern or torch.nn runs; "" if it is none of them."""
    found = getattr(module, "_cell", "")
    if isinstance(found, str) and found:
        return found
    kinds = {torch.nn.LSTM: "lstm", torch.nn.LSTMCell: "lstm", torch.nn.GRU: "gru", torch.nn.GRUCell: "gru"}
    kinds |= {torch.nn.RNN: getattr(module, "nonlinearity", ""), torch.nn.RNNCell: getattr(module, "nonlinearity", "")}
    name = next((name for kind, name in kinds.items() if isinstance(module, kind)), "")
    return "lstm_projected" if getattr(module, "proj_size", 0) else name


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
    cell = theory_cell("unit_samples", module)
    if module.bidirectional:
        raise ValueError("unit_samples: `module` must have one direction, got a bidirectional one")
    if (x is None) == (steps is None):
        raise ValueError("unit_samples: exactly one of `x` and `steps` must be given")
    if not 0 <= layer < module.num_layers:
        raise ValueError(f"unit_samples: `layer` must be between 0 and {module.num_layers - 1}, got {layer}")
    if x is not None:
        if x.dim() != 3 or x.shape[2] != module.input_size or not x.shape[0] or not x.shape[1]:
            wanted = "(B, T, I)" if module.batch_first else "(T, B, I)"
            raise ValueError(f"unit_samples: `x` must be {wanted}, not empty, I {module.input_size}: got {_shape(x)}")
        x = (x.transpose(0, 1) if module.batch_first else x).to("cpu", torch.float64)
    elif steps < 1:
        raise ValueError(f"unit_samples: `steps` must be positive, got {steps}")
    for k in range(layer + 1):
        weight_ih, R, bias_ih, bias_hh = _weights(module, k)
        u = bias_ih.expand(steps, 1, -1) if x is None else F.linear(x, weight_ih, bias_ih)
        state = _state(module, cell, hx, k, u, x is None, generator)
        if k < layer:
            x, _ = recurrence(cell, u, R, state, bias=bias_hh)
    if len(u) > 1:
        _, state = recurrence(cell, u[:-1], R, state, bias=bias_hh)
    return _one_step(cell, u[-1], R, bias_hh, state)


def _weights(module: Module, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W, R, b_ih and b_hh in float64 on the CPU; missing biases are zeros."""
    W, R = (getattr(module, f"weight_{kind}_l{layer}").to("cpu", torch.float64) for kind in ("ih", "hh"))
    if not module.bias:
        return W, R, W.new_zeros(W.shape[0]), W.new_zeros(W.shape[0])
    bias_ih, bias_hh = (getattr(module, f"bias_{kind}_l{layer}").to("cpu", torch.float64) for kind in ("ih", "hh"))
    return W, R, bias_ih, bias_hh


def _state(
    module: Module, cell: str, hx: Any, layer: int, u: Tensor, random: bool, generator: Generator | None
) -> tuple[Tensor, ...]:
    """The initial state of a layer; ``random`` is true without an input."""
    states, shape = CELLS[cell].states, (u.shape[1], module.hidden_size)
    if hx is not None:
        given = hx if isinstance(hx, tuple) else (hx,)
        wanted = (module.num_layers, *shape)
        if len(given) != states or any(tuple(s.shape) != wanted for s in given):
            raise ValueError(
                f"unit_samples: `hx` must be {states} tensors {wanted}, got {', '.join(str(_shape(s)) for s in given)}"
            )
        return tuple(s[layer].to("cpu", torch.float64) for s in given)
    if not random:
        return tuple(u.new_zeros(shape) for _ in range(states))
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(states)]
    return (torch.tanh(drawn[0]) / states, *drawn[1:])


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


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape)
