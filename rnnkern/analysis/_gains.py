"""Gains, biases and variances of the gates of a random network, by name."""

import math
from collections.abc import Mapping
from typing import NamedTuple

GATES = {
    "tanh": ("h",),
    "gru": ("h", "z", "r"),
    "gru_reset_before": ("h", "z", "r"),
    "lstm": ("h", "f", "i", "o"),
}
"""Names of the gates of each cell; h is the candidate: n of a GRU, g of an LSTM."""
RESET_CELLS = ("gru_reset_before", "gru")
ROWS = {
    "tanh": ("h",),
    "gru": ("r", "z", "h"),
    "gru_reset_before": ("r", "z", "h"),
    "lstm": ("i", "f", "h", "o"),
}
"""The same names in PyTorch's order of the rows of ``weight_hh``."""


class Gains(dict[str, float]):
    r"""Gains of the gates of a random network: the entries of the recurrent weight of gate k are drawn from
    :math:`N(0, a_k^2 / H)`, for H hidden units.

    - ``Gains(h)``: an Elman network with tanh.
    - ``Gains(h, z, r)``: a GRU. z is the update gate, which multiplies the old state, and r the reset gate.
    - ``Gains(h, f, i, o)``: an LSTM. f, i and o are the forget, input and output gate.

    h is the gain of the candidate: of :math:`\tanh(W x + R h)`, of n in a GRU, of g in an LSTM. Gains can also be given
    by name. The object is a dict from names to floats and has them as attributes.

    Args:
        values: 1, 3 or 4 gains in the order above, or h alone.
        named: further gains by name.

    Raises:
        ValueError: a gain is negative or NaN, or their names are not those of one of the three networks.

    Source: Can, Krishnamurthy and Schwab 2020, section 3.

    >>> rnnkern.analysis.Gains(3.0, z=10.0, r=1.0)
    Gains(h=3.0, z=10.0, r=1.0)
    """

    def __init__(self, *values: float, **named: float) -> None:
        order = {len(names): names for names in GATES.values()}.get(len(values), ())
        if len(order) != len(values):
            raise ValueError(f"Gains: there must be 1 (h), 3 (h, z, r) or 4 (h, f, i, o), got {len(values)}")
        twice = [name for name in named if name in order]
        if twice:
            raise ValueError(f"Gains: {twice[0]!r} must be given once, got it twice")
        given = {name: float(value) for name, value in zip((*order, *named), (*values, *named.values()), strict=True)}
        names = next((names for names in GATES.values() if set(names) == set(given)), None)
        if names is None:
            raise ValueError(f"Gains: the names must be h, or h, z and r, or h, f, i and o, got {', '.join(given)}")
        super().__init__({name: given[name] for name in names})
        for name, value in self.items():
            check_not_negative("Gains", name, value)

    def __getattr__(self, name: str) -> float:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"Gains has no gain {name!r}") from None

    def __repr__(self) -> str:
        return f"Gains({', '.join(f'{name}={value}' for name, value in self.items())})"


class Gate(NamedTuple):
    """The law of a gate's pre-activation: normal with mean ``bias`` and variance ``gain^2 C + variance``, where C is
    the mean square of what its recurrent weight multiplies."""

    gain: float
    bias: float
    variance: float

    def deviation(self, C: float) -> float:
        """The standard deviation."""
        return math.sqrt(self.gain**2 * C + self.variance)


def gates_of(
    caller: str, cell: str, gains: Mapping[str, float], biases: Mapping[str, float] | None = None,
    variances: Mapping[str, float] | None = None, cells: tuple[str, ...] = tuple(GATES),
) -> dict[str, Gate]:  # fmt: skip
    """The gates of a cell by name; missing biases and variances are 0.

    Raises:
        ValueError: the cell is not one of ``cells``, a name is not one of its gates, a gain is missing, or a gain or
            variance is negative or not finite.
    """
    if cell not in cells:
        raise ValueError(f"{caller}: `cell` must be one of {', '.join(cells)}, got {cell!r}")
    names = GATES[cell]
    biases, variances = biases or {}, variances or {}
    for argument, given in (("gains", gains), ("biases", biases), ("variances", variances)):
        if not isinstance(given, Mapping):
            raise TypeError(f"{caller}: `{argument}` must be a mapping such as Gains, got {type(given).__name__}")
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ValueError(f"{caller}: `{argument}` of {cell} must be among {', '.join(names)}, got {unknown[0]!r}")
    missing = [name for name in names if name not in gains]
    if missing:
        raise ValueError(f"{caller}: `gains` of {cell} must contain {', '.join(names)}; {missing[0]!r} is missing")
    gates = {}
    for name in names:
        gate = Gate(float(gains[name]), float(biases.get(name, 0.0)), float(variances.get(name, 0.0)))
        check_not_negative(caller, f"gains[{name!r}]", gate.gain)
        check_not_negative(caller, f"variances[{name!r}]", gate.variance)
        if not all(map(math.isfinite, gate)):
            raise ValueError(f"{caller}: gain, bias and variance of {name!r} must be finite, got {tuple(gate)}")
        gates[name] = gate
    return gates


def check_not_negative(caller: str, name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{caller}: `{name}` must not be negative, got {value}")


def check_positive(caller: str, name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{caller}: `{name}` must be positive, got {value}")


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
