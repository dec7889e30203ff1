"""Fixed points of random gated networks, their stability, and the phases that follow from both."""

import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from rnnkern.analysis._gains import RESET_CELLS, Gains, Gate, check_not_negative, check_positive, gates_of, sigmoid
from rnnkern.analysis._gauss import mean_square_of, nodes, peak, root, sech2, slope

FIXED_POINT_CELLS = ("gru_reset_before", "gru", "tanh")
SMALLEST, SCANNED = 1e-10, 161
"""Fixed points are searched between this mean square and 1, at this many values first."""


class ZeroPoint(NamedTuple):
    """Result of :func:`zero_point`."""

    centre: float
    radius: float
    stable: bool


def zero_point(cell: str, gains: Mapping[str, float], biases: Mapping[str, float] | None = None) -> ZeroPoint:
    r"""Computes where the eigenvalues of the Jacobian lie at the zero state of a random network without input.

    They fill the disk :math:`|\lambda - \mathrm{centre}| \le \mathrm{radius}` uniformly:

    .. math::
        |\lambda - z| \le (1 - z) r a_h, \quad z = \sigma(b_z), r = \sigma(b_r) & \text{GRU} \\
        |\lambda - f| \le o i a_h, \quad f = \sigma(b_f), i = \sigma(b_i), o = \sigma(b_o) & \text{LSTM} \\
        |\lambda| \le a_h & \text{tanh}

    An LSTM with H units has 2H eigenvalues; the other H are exactly 0. The disk of a GRU is the same for both places of
    the reset gate. The zero state is stable if centre + radius < 1. The gains of the gates have no influence.

    Args:
        cell: ``"gru"``, ``"gru_reset_before"``, ``"lstm"`` or ``"tanh"``.
        gains: a :class:`Gains` of the cell.
        biases: means of the biases, by gate; missing ones are 0. That of h must be 0, or zero is no fixed point.

    Returns:
        ``ZeroPoint(centre, radius, stable)``.

    Raises:
        ValueError: the cell or a name is unknown, a gain is missing or negative, or the bias of h is not 0.

    Source: Can, Krishnamurthy and Schwab 2020, equations 20 and 21, corollaries 5.3 and 5.4.

    >>> rnnkern.analysis.zero_point("gru", rnnkern.analysis.Gains(1.5, 10.0, 1.0))
    ZeroPoint(centre=0.5, radius=0.375, stable=True)
    """
    gates = gates_of("zero_point", cell, gains, biases)
    check_no_drive("zero_point", gates)
    value = {name: sigmoid(gate.bias) for name, gate in gates.items()}
    centre, radius = 0.0, gates["h"].gain
    if cell in RESET_CELLS:
        centre, radius = value["z"], (1 - value["z"]) * value["r"] * radius
    elif cell == "lstm":
        centre, radius = value["f"], value["o"] * value["i"] * radius
    return ZeroPoint(centre, radius, centre + radius < 1)


def fixed_points(
    gains: Mapping[str, float], biases: Mapping[str, float] | None = None,
    variances: Mapping[str, float] | None = None, *, cell: str = "gru_reset_before",
) -> list[float]:  # fmt: skip
    r"""Computes the fixed points of a large random GRU or tanh network without input, other than zero.

    Mean field theory describes a fixed point by the mean square of its units, :math:`C_h`, which solves

    .. math::
        C_h = E\, \tanh^2\Bigl(x \sqrt{a_h^2 C_y + v_h} + b_h\Bigr), \qquad
        C_y = C_h\, E\, \sigma^2\Bigl(x \sqrt{a_r^2 C_h + v_r} + b_r\Bigr)

    for the GRU with the reset gate before the product. With the reset gate after the product,
    :math:`C_h = E \tanh^2(r w + \sqrt{v_h} x + b_h)` with :math:`w \sim N(0, a_h^2 C_h)` independent of r; with tanh,
    r is 1. The update gate has no influence. All nonzero solutions that are known are unstable (:func:`shaping`).

    Args:
        gains: a :class:`Gains` of the cell.
        biases, variances: means and variances of the biases, by gate; missing ones are 0.
        cell: ``"gru_reset_before"``, ``"gru"`` or ``"tanh"``.

    Returns:
        The solutions :math:`C_h` between 1e-10 and 1 in increasing order: none, one or two without biases.

    Raises:
        ValueError: the cell or a name is unknown, or a gain or variance is missing or negative.

    Source: Can, Krishnamurthy and Schwab 2020, equation 10. The paper does not have the other two cells.

    >>> from rnnkern.analysis import Gains
    >>> [round(C, 6) for C in fixed_points(Gains(1.8, 1.0, 10.0))]
    [0.022202, 0.123864]
    """
    gates = gates_of("fixed_points", cell, gains, biases, variances, FIXED_POINT_CELLS)

    def excess(logarithm: float) -> float:
        C = math.exp(logarithm)
        return mean_square(cell, gates, C) / C - 1

    grid = torch.linspace(math.log(SMALLEST), 0, SCANNED, dtype=torch.float64).tolist()
    values = [excess(x) for x in grid]
    for k in range(len(grid) - 2, 0, -1):  # a peak above 0 between grid points whose values are below it
        if max(values[k - 1], values[k + 1]) < values[k] < 0:
            x, top = peak(excess, grid[k - 1], grid[k + 1])
            if top > 0:
                grid[k], values[k] = x, top
    pairs = itertools.pairwise(zip(grid, values, strict=True))
    return [math.exp(root(excess, a, b)) for (a, f_a), (b, f_b) in pairs if (f_a > 0) != (f_b > 0)]


def shaping(
    C_h: float, gains: Mapping[str, float], biases: Mapping[str, float] | None = None,
    variances: Mapping[str, float] | None = None, *, cell: str = "gru_reset_before",
) -> float:  # fmt: skip
    r"""Computes the spectral shaping parameter :math:`\rho` of a random GRU or tanh network.

    .. math::
        \rho^2 = a_h^2\, E[\tanh'(y)^2] \bigl(E[r^2] + a_r^2\, E[\sigma'(\xi)^2]\, C_h\bigr)

    y and xi are the pre-activations of the candidate and of the reset gate, with the variances of
    :func:`fixed_points`. With the reset gate after the product,
    :math:`\rho^2 = E[\tanh'(y)^2 (a_h^2 r^2 + a_r^2 \sigma'(\xi)^2 w^2)]`. A fixed point is stable if and only if
    :math:`\rho < 1`. Without gain of the update gate, the spectral radius of the Jacobian is
    :math:`z + (1 - z) \rho` with :math:`z = \sigma(b_z)`, at a fixed point or not.

    Args:
        C_h: mean square of the units: of a fixed point, or C[0] of :func:`mean_field`.
        gains, biases, variances, cell: as in :func:`fixed_points`.

    Returns:
        rho.

    Raises:
        ValueError: as :func:`fixed_points`, or ``C_h`` is negative.

    Source: Can, Krishnamurthy and Schwab 2020, equation 19, corollaries 4.4 and 4.6.

    >>> gains = rnnkern.analysis.Gains(3.0, 1.0, 1.0)
    >>> round(shaping(fixed_points(gains)[0], gains), 6)
    1.118581
    """
    gates = gates_of("shaping", cell, gains, biases, variances, FIXED_POINT_CELLS)
    check_not_negative("shaping", "C_h", C_h)
    h = gates["h"]
    if cell == "gru":
        return _shaping_after(gates, C_h)
    r = gates.get("r")
    C_r = 1.0 if r is None else mean_square_of(torch.sigmoid, r.bias, r.deviation(C_h))
    through_gate = 0.0 if r is None else r.gain**2 * mean_square_of(slope, r.bias, r.deviation(C_h)) * C_h
    return h.gain * math.sqrt(mean_square_of(sech2, h.bias, h.deviation(C_r * C_h)) * (C_r + through_gate))


def phase(
    gains: Mapping[str, float], biases: Mapping[str, float] | None = None, *, cell: str = "gru_reset_before"
) -> str:
    """Tells the phase of a large random GRU or tanh network without input.

    - ``"zero"``: the zero state is stable and the only fixed point of mean field theory; activity dies out.
    - ``"coexistence"``: the zero state is stable, and there are unstable fixed points and chaos beside it. GRUs with
      sqrt(2) < a_h < 2 have this phase if a_r is large enough (:func:`bifurcation`).
    - ``"chaos"``: the zero state is unstable; activity never settles. Without biases: a_h > 2 in a GRU.

    Args:
        gains, cell: as in :func:`fixed_points`.
        biases: means of the biases, by gate; that of h must be 0.

    Returns:
        The phase.

    Raises:
        ValueError: as :func:`fixed_points`, or the bias of h is not 0.

    Source: Can, Krishnamurthy and Schwab 2020, section 4.4 and figure 2.

    >>> [phase(Gains(a_h, 1.0, 10.0)) for a_h in (1.2, 1.8, 2.2)]
    ['zero', 'coexistence', 'chaos']
    """
    check_no_drive("phase", gates_of("phase", cell, gains, biases, cells=FIXED_POINT_CELLS))
    if not zero_point(cell, gains, biases).stable:
        return "chaos"
    return "coexistence" if fixed_points(gains, biases, cell=cell) else "zero"


def bifurcation(a_h: float, *, cell: str = "gru_reset_before") -> float:
    """Computes the gain of the reset gate from which on a GRU without biases has nonzero fixed points although zero is
    stable: the line between the phases ``"zero"`` and ``"coexistence"``.

    Args:
        a_h: gain of the candidate, between sqrt(2) and 2.
        cell: ``"gru_reset_before"`` or ``"gru"``. The line of ``"gru"`` begins above sqrt(2).

    Returns:
        a_r, from which on :func:`fixed_points` finds two.

    Raises:
        ValueError: ``a_h`` is not between sqrt(2) and 2, the cell is unknown, or there are no nonzero fixed points for
            any a_r up to 10,000.

    Source: Can, Krishnamurthy and Schwab 2020, section 4.4 and figure 2.

    >>> round(bifurcation(1.8), 4)
    8.157
    """
    if cell not in RESET_CELLS:
        raise ValueError(f"bifurcation: `cell` must be one of {', '.join(RESET_CELLS)}, got {cell!r}")
    if not math.sqrt(2) < a_h < 2:
        raise ValueError(f"bifurcation: `a_h` must be between sqrt(2) and 2, got {a_h}")
    highest = 1e4

    def excess(logarithm: float, a_r: float) -> float:
        C = math.exp(logarithm)
        return mean_square(cell, {"h": Gate(a_h, 0.0, 0.0), "r": Gate(a_r, 0.0, 0.0)}, C) / C - 1

    def needed(logarithm: float) -> float:
        """Minus ln a_r at which C is a fixed point; the mean square grows with a_r. With infinite a_r half of the gates
        are open and the others closed."""
        C, open_ = math.exp(logarithm), {"h": Gate(a_h, 0.0, 0.0)}
        limit = mean_square("tanh", open_, C) / 2 if cell == "gru" else mean_square("tanh", open_, C / 2)
        upper = 4.0
        while limit > C and upper < highest and excess(logarithm, upper) < 0:
            upper *= 2
        if limit <= C or upper >= highest:
            return -math.log(highest)
        return -root(lambda x: excess(logarithm, math.exp(x)), math.log(upper / 2), math.log(upper))

    grid = torch.linspace(math.log(1e-6), 0, 41, dtype=torch.float64).tolist()
    k = max(range(1, 40), key=lambda k: needed(grid[k]))
    _, found = peak(needed, grid[k - 1], grid[k + 1], 25)
    if found <= -math.log(highest):
        raise ValueError(f"bifurcation: a {cell} with a_h = {a_h} has no nonzero fixed points for a_r up to {highest}")
    return math.exp(-found)


def marginal(a_h: float, *, beta: float = 0.0, cell: str = "gru_reset_before") -> float:
    r"""Computes the gain of the reset gate up to which a large gain of the update gate makes the nonzero fixed point of
    a GRU marginally stable: the line :math:`\rho^2 = 1 / \alpha`.

    .. math::
        \alpha = \tfrac12 \mathrm{erfc}\bigl(\beta / \sqrt{2 C_h}\bigr)

    is the share of units whose update gate is closed, :math:`\beta = b_z / a_z`. Without biases the line is
    :math:`\rho = \sqrt 2`. With two fixed points, the larger one is meant.

    Args:
        a_h: gain of the candidate.
        beta: ratio of bias and gain of the update gate.
        cell: ``"gru_reset_before"`` or ``"gru"``.

    Returns:
        a_r, between 0.001 and 500.

    Raises:
        ValueError: the cell is unknown, or no a_r in this range is on the line.

    Source: Can, Krishnamurthy and Schwab 2020, equation 28.

    >>> round(marginal(3.0), 4)
    4.6977
    """
    if cell not in RESET_CELLS:
        raise ValueError(f"marginal: `cell` must be one of {', '.join(RESET_CELLS)}, got {cell!r}")
    check_not_negative("marginal", "a_h", a_h)

    def excess(logarithm: float) -> float:
        gains = Gains(a_h, 0.0, math.exp(logarithm))
        found = fixed_points(gains, cell=cell)
        return shaping(found[-1], gains, cell=cell) * math.sqrt(closed_share(found[-1], beta)) - 1 if found else -1.0

    lowest = 1e-3
    if a_h < 2:  # nonzero fixed points begin at the bifurcation
        lowest = bifurcation(a_h, cell=cell) * (1 + 1e-9) if a_h > math.sqrt(2) else math.inf
    upper = max(4.0, 2 * lowest)
    while upper < 1e3 and excess(math.log(upper)) <= 0:  # integrals for large gains are slow
        upper *= 2
    if not (upper < 1e3 and excess(math.log(lowest)) < 0):
        raise ValueError(f"marginal: no a_r is on the line for a_h = {a_h}")
    return math.exp(root(excess, math.log(lowest), math.log(upper)))


def pinching_rate(C_h: float, rho: float, *, beta: float = 0.0) -> float:
    r"""Computes how fast the spectral radius of a fixed point of a GRU approaches 1 as the gain of the update gate
    grows: :math:`\ln(\text{radius} - 1)` falls by :math:`c \sqrt{C_h}` per unit of a_z, for large a_z.

    .. math::
        \mathrm{erf}\Bigl(\frac{c - \beta / \sqrt{C_h}}{\sqrt 2}\Bigr) = \frac{2}{\rho^2} - 1

    Args:
        C_h: mean square of the units, of :func:`fixed_points`.
        rho: :func:`shaping` of that fixed point.
        beta: ratio of bias and gain of the update gate.

    Returns:
        c.

    Raises:
        ValueError: ``C_h`` is not positive, or the fixed point does not become marginally stable: rho is 1 or less, or
            beyond the line of :func:`marginal`.

    Source: Can, Krishnamurthy and Schwab 2020, theorem 4.8, equations 26 to 28.

    >>> round(pinching_rate(0.379890859, 1.11858079), 4)
    0.8388
    """
    check_positive("pinching_rate", "C_h", C_h)
    limit = 1 / closed_share(C_h, beta)
    if not 1 < rho**2 < limit:
        raise ValueError(f"pinching_rate: `rho` must be between 1 and {math.sqrt(limit):g}, got {rho}")
    erf = torch.tensor(2 / rho**2 - 1, dtype=torch.float64)
    return math.sqrt(2) * torch.erfinv(erf).item() + beta / math.sqrt(C_h)


def check_no_drive(caller: str, gates: Mapping[str, Gate]) -> None:
    if gates["h"].bias != 0:
        raise ValueError(f"{caller}: the bias of h must be 0, got {gates['h'].bias}; zero is no fixed point with it")


def mean_square(cell: str, gates: Mapping[str, Gate], C: float) -> float:
    """The right-hand side of the equation of :func:`fixed_points`."""
    h, r = gates["h"], gates.get("r")
    if cell == "gru":
        return _mean_square_after(gates, C)
    C_y = C if r is None else C * mean_square_of(torch.sigmoid, r.bias, r.deviation(C))
    return mean_square_of(torch.tanh, h.bias, h.deviation(C_y))


def _mean_square_after(gates: Mapping[str, Gate], C: float) -> float:
    """E tanh(r w + sqrt(v_h) x + b_h)^2 on a grid of xi and the candidate's normal variable."""
    h, r = gates["h"], gates["r"]
    xi, w_xi = nodes(r.deviation(C))
    y, w_y = nodes(h.deviation(C))
    deviation = (torch.sigmoid(r.bias + r.deviation(C) * xi).square() * (h.gain**2 * C) + h.variance).sqrt()
    return float(w_xi @ torch.tanh(h.bias + deviation.unsqueeze(1) * y).square() @ w_y)


def _shaping_after(gates: Mapping[str, Gate], C: float) -> float:
    """rho with the reset gate after the product. Given y = r w + sqrt(v_h) x + b_h, w is normal; its mean square
    follows from the joint covariance."""
    h, r = gates["h"], gates["r"]
    xi, w_xi = nodes(r.deviation(C))
    x, w_x = nodes(h.deviation(C))
    pre = (r.bias + r.deviation(C) * xi).unsqueeze(1)
    gate, of_w = torch.sigmoid(pre), h.gain**2 * C
    total = gate.square() * of_w + h.variance
    # Share of y's variance that is w's; without other variance it is 1 even if the gate underflows.
    share = gate.square() * of_w / total if h.variance > 0 else torch.ones_like(gate)
    w_square = of_w * (share * x.square() + 1 - share)
    inner = h.gain**2 * gate.square() + r.gain**2 * slope(pre).square() * w_square
    return math.sqrt(float(w_xi @ (sech2(h.bias + total.sqrt() * x).square() * inner) @ w_x))


def closed_share(C_h: float, beta: float) -> float:
    """The share of closed update gates; equation 28."""
    return math.erfc(beta / math.sqrt(2 * C_h)) / 2
