"""The phases of a random GRU, and what a large gain of its update gate does."""

import math
from collections.abc import Mapping

import torch

from rnnkern.analysis._fixed_points import (
    FIXED_POINT_CELLS,
    check_no_drive,
    fixed_points,
    mean_square,
    shaping,
    zero_point,
)
from rnnkern.analysis._gains import RESET_CELLS, Gains, Gate, check_not_negative, gates_of
from rnnkern.analysis._gauss import peak, root


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
    if not C_h > 0:
        raise ValueError(f"pinching_rate: `C_h` must be positive, got {C_h}")
    limit = 1 / closed_share(C_h, beta)
    if not 1 < rho**2 < limit:
        raise ValueError(f"pinching_rate: `rho` must be between 1 and {math.sqrt(limit):g}, got {rho}")
    erf = torch.tensor(2 / rho**2 - 1, dtype=torch.float64)
    return math.sqrt(2) * torch.erfinv(erf).item() + beta / math.sqrt(C_h)


def closed_share(C_h: float, beta: float) -> float:
    """The share of closed update gates; equation 28."""
    return math.erfc(beta / math.sqrt(2 * C_h)) / 2
