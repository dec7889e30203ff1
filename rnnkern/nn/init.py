"""Draws recurrent weights with chosen gains of the gates, and tells what theory says about initial values."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import Module
from torch.nn.utils.parametrize import is_parametrized

from rnnkern.analysis import (
    Gains,
    expected_slow_fraction,
    fixed_points,
    mean_field,
    phase,
    shaping,
    spectral_edge,
    zero_point,
)
from rnnkern.analysis._gains import ROWS, gates_of
from rnnkern.analysis._layers import theory_cell

__all__ = ["Initialisation", "describe_initialisation", "gate_variance_", "glorot_normal_"]

CELLS_OF_KINDS = {
    (torch.nn.LSTM, torch.nn.LSTMCell): "lstm",
    (torch.nn.GRU, torch.nn.GRUCell): "gru",
    (torch.nn.RNN, torch.nn.RNNCell): "tanh",
}
"""Cells whose gates the kinds of modules have; a subclass has those of its base class."""
POPULATION, STEPS = 10_000, 120


@torch.no_grad()
def glorot_normal_(module: Module) -> Module:
    r"""Draws the input and recurrent weight of each gate from Glorot's normal distribution, and sets biases to 0, as
    the RNN and the LSTM of Kerg et al. 2019 start (tables A.1, A.2 and A.4).

    .. math::
        W_{ij} \sim N\left(0, \frac{2}{\mathrm{rows} + \mathrm{columns}}\right)

    Args:
        module: an LSTM, GRU or RNN of rnnkern.nn or torch.nn, without parametrized weights. It is changed in place.

    Returns:
        The module.

    Raises:
        ValueError: the module has another type, or its recurrent weight is parametrized.

    >>> lstm = glorot_normal_(rnnkern.nn.LSTM(10, 200))
    >>> abs(lstm.weight_hh_l0.std().item() - (2 / 400) ** 0.5) < 0.001
    True
    """
    if not isinstance(module, torch.nn.RNNBase):
        raise ValueError(f"glorot_normal_: `module` must be an LSTM, GRU or RNN, got {type(module).__name__}")
    for names in module._all_weights:
        if is_parametrized(module, names[1]):
            raise ValueError(f"glorot_normal_: `{names[1]}` is parametrized")
        for name in names:
            parameter = getattr(module, name)
            if not name.startswith("weight_ih") and not name.startswith("weight_hh"):
                if name.startswith("bias"):
                    parameter.zero_()
                continue
            gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
            *_, rows, columns = parameter.unflatten(-2, (gates, -1)).shape
            parameter.normal_(0, (2 / (rows + columns)) ** 0.5)
    return module


@torch.no_grad()
def gate_variance_(
    module: Module, gains: Mapping[str, float], biases: Mapping[str, float] | None = None,
    variances: Mapping[str, float] | None = None, *, layers: Sequence[int] | None = None,
    generator: Generator | None = None,
) -> Module:  # fmt: skip
    r"""Draws recurrent weights and biases with a gain, a mean bias and a variance of the bias for each gate.

    .. math::
        R_{k,ij} \sim N(0, a_k^2 / \mathrm{fan}), \qquad b_{ih,k} \sim N(b_k, v_k), \qquad b_{hh} = 0

    fan is the number of columns of the recurrent weight: H, D with heads, P with ``proj_size``. Input weights stay as
    they are. Values are drawn in float64 on the CPU and then rounded to the dtype of the parameters.

    The gates are h, z and r of a GRU, h, f, i and o of an LSTM, and h of an RNN, where h is the candidate
    (:class:`rnnkern.analysis.Gains`). The update gate z multiplies the old state, as in PyTorch. Which gains to choose:
    see the documentation, "Gains of the gates".

    Args:
        module: an LSTM, GRU or RNN, or a cell module, of rnnkern.nn or torch.nn. It is changed in place.
        gains: a :class:`rnnkern.analysis.Gains`, or a dict with the same names.
        biases, variances: means and variances of the biases, by gate; missing ones are 0.
        layers: indices of the layers to draw, in both directions. The default is all.
        generator: CPU generator. The default is torch's global generator.

    Returns:
        The module.

    Raises:
        ValueError: a gate is unknown, a gain is missing, a gain or variance is negative, a layer does not exist, the
            module has no such gates, its recurrent weight is parametrized or normalized by ``layer_norm``, or a bias
            or variance is asked for and the module has ``bias=False``.

    Source: Can, Krishnamurthy and Schwab 2020, section 3 and appendix H.

    >>> gru = rnnkern.nn.GRU(10, 256, reset_gate="before")
    >>> _ = gate_variance_(gru, rnnkern.analysis.Gains(h=2.5, z=10.0, r=0.1))
    >>> bool(gru.bias_hh_l0.any())
    False
    """
    cell = next((cell for kinds, cell in CELLS_OF_KINDS.items() if isinstance(module, kinds)), None)
    if cell is None:
        raise ValueError(f"gate_variance_: `module` must be an LSTM, GRU or RNN, got {type(module).__name__}")
    gates = gates_of("gate_variance_", cell, gains, biases, variances)
    names = _weights(module, layers)
    for name in names:
        if is_parametrized(module, name):
            raise ValueError(f"gate_variance_: {name} must not be parametrized; initialize the parametrization")
    if getattr(module, "layer_norm", False):
        raise ValueError("gate_variance_: `module` must have no layer_norm; it removes the gain of recurrent weights")
    if not module.bias and any(gate.bias or gate.variance for gate in gates.values()):
        raise ValueError("gate_variance_: biases and variances must be 0 for a module with bias=False")
    rows = [gates[gate] for gate in ROWS[cell]]
    a, b, v = (torch.tensor(values, dtype=torch.float64).unsqueeze(1) for values in zip(*rows, strict=True))
    for name in names:
        weight = getattr(module, name)
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64).unflatten(-2, (len(rows), -1))
        weight.copy_((drawn * (a.unsqueeze(1) / math.sqrt(weight.shape[-1]))).flatten(-3, -2))
        if module.bias:
            bias_ih, bias_hh = (getattr(module, name.replace("weight_hh", kind)) for kind in ("bias_ih", "bias_hh"))
            drawn = torch.randn(bias_ih.shape, generator=generator, dtype=torch.float64).unflatten(0, (len(rows), -1))
            bias_ih.copy_((b + v.sqrt() * drawn).flatten())
            bias_hh.zero_()
    return module


def _weights(module: Module, layers: Sequence[int] | None) -> list[str]:
    """Names of the recurrent weights of these layers."""
    count = getattr(module, "num_layers", 1)
    wanted = range(count) if layers is None else layers
    wrong = [k for k in wanted if not 0 <= k < count]
    if wrong:
        raise ValueError(f"gate_variance_: `layers` must be between 0 and {count - 1}, got {wrong[0]}")
    if not hasattr(module, "num_layers"):
        return ["weight_hh"] if len(wanted) else []
    ends = ("", "_reverse") if module.bidirectional else ("",)
    return [f"weight_hh_l{k}{end}" for k in wanted for end in ends]


class Initialisation(NamedTuple):
    """Result of :func:`describe_initialisation`."""

    gains: Gains
    biases: dict[str, float]
    zero_point_stable: bool
    phase: str | None
    C_h: float
    rho_0: float | None
    edge: float
    slow_fraction: float
    variances: dict[str, float]


@torch.no_grad()
def describe_initialisation(module: Module, *, layer: int = 0) -> Initialisation:
    r"""Estimates the gains of a layer's gates and tells what mean field theory predicts for a large random network with
    these gains: whether the zero state is stable, how large the eigenvalues of the Jacobian are, and how many are close
    to 1.

    The gain of gate k is the root mean square of its recurrent weights times the square root of the number of columns;
    bias and variance are mean and variance of b_ih + b_hh over the units. Weights of any origin can be described; of
    trained ones the theory is exact only if they look random. The network has no input.

    Args:
        module: a GRU, an LSTM or an RNN with tanh, of rnnkern.nn or torch.nn.
        layer: index of the layer; its forward direction is described.

    Returns:
        A tuple ``Initialisation`` of

        - ``gains``, ``biases``: the estimates.
        - ``zero_point_stable``: whether the zero state is stable (:func:`rnnkern.analysis.zero_point`). This field and
          ``phase`` ignore the bias of h.
        - ``phase``: ``"zero"``, ``"coexistence"`` or ``"chaos"`` (:func:`rnnkern.analysis.phase`); None for an LSTM.
        - ``C_h``, ``rho_0``: mean square of the units and :func:`rnnkern.analysis.shaping` at the largest fixed point;
          0 and the value at the zero state if there is no other. For an LSTM: the mean square in the steady state, and
          None.
        - ``edge``: the largest real number in the spectrum of the Jacobian in the steady state
          (:func:`rnnkern.analysis.spectral_edge`).
        - ``slow_fraction``: expected number of eigenvalues within .05 of 1, divided by the number of units
          (:func:`rnnkern.analysis.expected_slow_fraction`); 0 for tanh.
        - ``variances``: of the biases.

        A population of 10,000 units from a fixed seed replaces the network, so ``edge`` and ``slow_fraction`` are good
        to 1 or 2 percent. It takes about half a second.

    Raises:
        ValueError: the module runs another cell, has zoneout or a filter, or has no such layer.

    Source: Can, Krishnamurthy and Schwab 2020.

    >>> gru = rnnkern.nn.GRU(10, 256, reset_gate="before")
    >>> _ = gate_variance_(gru, rnnkern.analysis.Gains(h=1.2, z=5.0, r=1.0))
    >>> describe_initialisation(gru).phase
    'zero'
    """
    cell = theory_cell("describe_initialisation", module)
    count = getattr(module, "num_layers", 1)
    if not 0 <= layer < count:
        raise ValueError(f"describe_initialisation: `layer` must be between 0 and {count - 1}, got {layer}")
    gains, biases, variances = _estimates(module, cell, f"_l{layer}" if hasattr(module, "num_layers") else "")
    without = {name: bias for name, bias in biases.items() if name != "h"}
    generator = torch.Generator().manual_seed(0)
    steady = mean_field(cell, gains, biases, variances, lags=0, population=POPULATION, steps=STEPS, generator=generator)
    C, rho, named, slow = steady.C[0].item(), None, None, 0.0
    if cell != "tanh":
        slow = expected_slow_fraction(C, gains, biases, variances, cell=cell)
    if cell != "lstm":
        named = phase(gains, without, cell=cell)
        C = max(fixed_points(gains, biases, variances, cell=cell), default=0.0)
        rho = shaping(C, gains, biases, variances, cell=cell)
    return Initialisation(
        gains, biases, zero_point(cell, gains, without).stable, named, C, rho, spectral_edge(steady.samples, gains),
        slow, variances,
    )  # fmt: skip


def _estimates(module: Module, cell: str, end: str) -> tuple[Gains, dict[str, float], dict[str, float]]:
    """Gains, means and variances of the biases of a layer, by gate."""
    names = ROWS[cell]
    weight = getattr(module, f"weight_hh{end}").to("cpu", torch.float64)
    squares = weight.square().unflatten(-2, (len(names), -1)).mean(-1)
    squares = squares.mean([k for k in range(squares.dim()) if k != squares.dim() - 2])
    gains = dict(zip(names, (squares * weight.shape[-1]).sqrt().tolist(), strict=True))
    bias = torch.zeros(len(names), 1, dtype=torch.float64)
    if module.bias:
        both: list[Tensor] = [getattr(module, f"bias_{kind}{end}").to("cpu", torch.float64) for kind in ("ih", "hh")]
        bias = (both[0] + both[1]).unflatten(0, (len(names), -1))
    means, spreads = bias.mean(1).tolist(), bias.var(1, correction=0).tolist()
    return Gains(**gains), dict(zip(names, means, strict=True)), dict(zip(names, spreads, strict=True))
