"""Initial values of recurrent layers with chosen gains of the gates, and what theory says about initial values."""

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

__all__ = [
    "Initialisation", "adding_solution_", "copy_solution_", "describe_initialisation", "gate_variance_",
    "glorot_normal_",
]  # fmt: skip

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


def copy_solution_(
    layer: Module, head: Module, length: int, copied: int, *, generator: Generator | None = None
) -> None:
    r"""Sets a :class:`rnnkern.nn.HenaffRNN` and the linear layer behind it to a solution of the copy task.

    R rotates planes by angles :math:`2 \pi l_j / (T + K)` with random integers :math:`l_j`, so :math:`R^{T+K} = I`, and
    one more unit keeps its value. Each of the A symbols has :math:`d = \lfloor (H - 1) / 2 A \rfloor` planes of its
    own, to each of which it adds the vector (1, 0). After T + K steps the vectors of a symbol are aligned again, and
    those of other times are not; the head adds them up. The last unit counts the mark, before which the answer is
    blank.

    An answer is right if the symbol's sum d exceeds d / 2 and no other sum does. The other sums have mean 0 and a
    variance of d / 2 for each occurrence in the sequence, so d must be large compared with K.

    Args:
        layer: a HenaffRNN with one layer, one direction, biases and ``input_nonlinearity="relu"``. Its input is
            one-hot: blank, A symbols, mark; so I = A + 2.
        head: a :class:`torch.nn.Linear` from H to A + 1 answers (blank, A symbols) with bias.
        length, copied: T and K. Symbols are read in steps 0 to K - 1, the mark in step T + K - 1, and answered in steps
            T + K to T + 2 K - 1.
        generator: CPU generator. The default is torch's global generator.

    Raises:
        ValueError: a size is too small, or the modules do not fit each other.

    Source: Henaff, Szlam and LeCun 2016, section 4.1; Kerg 2022, appendix D.2.
    """
    symbols = layer.input_size - 2
    planes = (layer.hidden_size - 1) // (2 * symbols) if symbols > 0 else 0
    _check_henaff("copy_solution_", layer, head, symbols + 1)
    if planes < 1:
        least = f"at least 3 inputs and 2 A + 1 = {2 * max(symbols, 1) + 1} units"
        raise ValueError(f"copy_solution_: `layer` must have {least}, got {layer.input_size} and {layer.hidden_size}")
    if length < 1 or copied < 1:
        raise ValueError(f"copy_solution_: `length` and `copied` must be at least 1, got {length} and {copied}")
    count, period = symbols * planes, length + copied
    angle = 2 * math.pi / period * torch.randint(1, period + 1, (count,), generator=generator).double()
    R = torch.eye(layer.hidden_size, dtype=torch.float64)
    first, second = 2 * torch.arange(count), 2 * torch.arange(count) + 1
    R[first, first] = R[second, second] = angle.cos()
    R[first, second], R[second, first] = angle.sin(), -angle.sin()
    W, out = torch.zeros(layer.hidden_size, layer.input_size), torch.zeros(symbols + 1, layer.hidden_size)
    symbol = torch.arange(count) // planes
    W[first, 1 + symbol] = out[1 + symbol, first] = 1.0
    W[-1, -1], out[0, -1] = 1.0, -2.0 * count
    bias = torch.zeros(symbols + 1)
    bias[0] = 2.0 * count + planes / 2
    _set(layer, head, W, R, out, bias)


def adding_solution_(layer: Module, head: Module) -> None:
    r"""Sets a :class:`rnnkern.nn.HenaffRNN` and the linear layer behind it to the solution of the adding problem.

    R is the identity. Each unit adds :math:`\mathrm{relu}(v + m - 1)`, which is the number v in [0, 1] where the mark m
    is 1, and 0 where it is 0. The head returns the mean of the units.

    Args:
        layer: a HenaffRNN with one layer, one direction, biases and ``input_nonlinearity="relu"``. Its input is (v, m).
        head: a :class:`torch.nn.Linear` from H to 1 with bias.

    Raises:
        ValueError: the modules do not fit each other.

    Source: Henaff, Szlam and LeCun 2016, section 4.2; Kerg 2022, appendix D.2.
    """
    if layer.input_size != 2:
        raise ValueError(f"adding_solution_: `layer` must have 2 inputs, got {layer.input_size}")
    _check_henaff("adding_solution_", layer, head, 1)
    size = layer.hidden_size
    _set(layer, head, torch.ones(size, 2), torch.eye(size), torch.full((1, size), 1 / size), torch.zeros(1))
    torch.nn.init.constant_(layer.bias_ih_l0, -1.0)


def _check_henaff(function: str, layer: Module, head: Module, answers: int) -> None:
    if not getattr(layer, "bias", False) or getattr(layer, "input_nonlinearity", None) != "relu":
        raise ValueError(f"{function}: `layer` must be a HenaffRNN with biases and relu, got {layer}")
    if layer.num_layers > 1 or layer.bidirectional or layer.num_heads > 1:
        raise ValueError(f"{function}: `layer` must have one layer, one direction and one head, got {layer}")
    if head.bias is None or tuple(head.weight.shape) != (answers, layer.hidden_size):
        wanted = f"({answers}, {layer.hidden_size}), and a bias"
        raise ValueError(f"{function}: `head` must have a weight {wanted}, got {head}")


@torch.no_grad()
def _set(layer: Module, head: Module, W: Tensor, R: Tensor, out: Tensor, bias: Tensor) -> None:
    layer.weight_ih_l0.copy_(W)
    layer.weight_hh_l0.copy_(R)
    for each in (layer.bias_ih_l0, layer.bias_hh_l0):
        torch.nn.init.zeros_(each)
    head.weight.copy_(out)
    head.bias.copy_(bias)
