"""Slow modes of a Jacobian, and the mean square of the singular values of its powers at a fixed point."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rnnkern.analysis._fixed_points import FIXED_POINT_CELLS, closed_share, shaping
from rnnkern.analysis._gains import check_not_negative, check_positive, gates_of, sigmoid


@torch.no_grad()
def slow_fraction(J: Tensor, radius: float = 0.05) -> Tensor:
    r"""Computes the share of eigenvalues that are close to 1, :math:`|\lambda - 1| < \mathrm{radius}`. Their modes
    change slowly: they keep information over many steps.

    Args:
        J: eigenvalues (..., n), complex; or a Jacobian (..., n, n), real. A real vector (n,) contains real eigenvalues.
        radius: positive.

    Returns:
        (...), float64.

    Raises:
        ValueError: ``radius`` is not positive, or ``J`` is empty, real and not square, or has no dimension.

    Source: Can, Krishnamurthy and Schwab 2020, figures 1f and 4.

    >>> slow_fraction(torch.diag(torch.tensor([0.99, 0.5, 0.2, 0.1])))
    tensor(0.2500, dtype=torch.float64)
    """
    check_positive("slow_fraction", "radius", radius)
    if J.dim() == 0 or not J.shape[-1]:
        raise ValueError(f"slow_fraction: `J` must be (..., n) or (..., n, n), not empty: got {tuple(J.shape)}")
    if not J.is_complex() and J.dim() > 1:
        if J.shape[-1] != J.shape[-2]:
            raise ValueError(f"slow_fraction: a real `J` must be (..., n, n), got {tuple(J.shape)}")
        J = torch.linalg.eigvals(J.to(torch.float64))
    return ((J - 1).abs() < radius).to(torch.float64).mean(-1)


def expected_slow_fraction(
    C_h: float, gains: Mapping[str, float], biases: Mapping[str, float] | None = None,
    variances: Mapping[str, float] | None = None, *, cell: str = "gru_reset_before", radius: float = 0.05,
) -> float:  # fmt: skip
    r"""Computes the number of slow modes per unit of a large random GRU or LSTM, if the gain of the update or forget
    gate is large.

    .. math::
        P(|\lambda - 1| < r) \approx \tfrac12 \mathrm{erfc}\biggl(
            \frac{-\ln r - b_z}{\sqrt{2 (a_z^2 C_h + v_z)}} \biggr)

    It is the probability that :math:`e^{-\zeta} < r`, for the pre-activation zeta of the update gate; nothing is
    fitted. It is good to .04 for a GRU from a_z = 5 on. For an LSTM, f takes the place of z and it is good to .06; an
    LSTM has two eigenvalues per unit, so :func:`slow_fraction` of its Jacobian is half as large.

    Args:
        C_h: mean square of the units: C[0] of :func:`mean_field`.
        gains, biases, variances: as in :func:`mean_field`.
        cell: ``"gru"``, ``"gru_reset_before"`` or ``"lstm"``.
        radius: r, positive.

    Returns:
        The number of eigenvalues within r of 1, divided by the number of units.

    Raises:
        ValueError: the cell or a name is unknown, a gain or variance is missing or negative, ``C_h`` is negative, or
            ``radius`` is not positive.

    Source: Can, Krishnamurthy and Schwab 2020, equation 111, which has no bias and no LSTM.

    >>> round(expected_slow_fraction(0.35, rnnkern.analysis.Gains(3.0, 10.0, 0.0)), 3)
    0.306
    """
    caller = "expected_slow_fraction"
    gates = gates_of(caller, cell, gains, biases, variances, ("gru", "gru_reset_before", "lstm"))
    z = gates["f" if cell == "lstm" else "z"]
    check_not_negative(caller, "C_h", C_h)
    check_positive(caller, "radius", radius)
    distance, deviation = -math.log(radius) - z.bias, z.deviation(C_h)
    return math.erfc(distance / (math.sqrt(2) * deviation)) / 2 if deviation > 0 else float(distance < 0)


def participation(vectors: Tensor) -> Tensor:
    r"""Computes the share of the units that take part in a mode.

    .. math::
        \frac{(\sum_i |v_i|^2)^2}{n \sum_i |v_i|^4}

    It is 1 if all entries are equally large, and 1/n for a unit vector.

    Args:
        vectors: (n, m), real or complex, with a mode in each column, none of them zero.

    Returns:
        (m,), float64.

    Raises:
        ValueError: ``vectors`` is not (n, m), or one of them is zero.

    >>> participation(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    if vectors.dim() != 2 or not vectors.shape[0]:
        raise ValueError(f"participation: `vectors` must be (n, m), got {tuple(vectors.shape)}")
    largest = vectors.abs().amax(0)
    if not largest.all():
        raise ValueError("participation: no column of `vectors` must be zero")
    square = (vectors.abs() / largest).to(torch.float64).square()
    return square.sum(0).square() / (len(square) * square.square().sum(0))


def squared_singular_values(
    cell: str, gains: Mapping[str, float], n: int, C_h: float, biases: Mapping[str, float] | None = None, *,
    switch: bool = False,
) -> float:  # fmt: skip
    r"""Computes how much n steps amplify a small perturbation of a fixed point of a large random network: the mean
    square :math:`\mu_n = \langle \mathrm{tr}\, J^{n\top} J^n / N \rangle` of the singular values of :math:`J^n`.

    .. math::
        \mu_n &= \sum_{q=0}^n \binom{n}{q}^2 z^{2(n-q)} ((1-z) \rho)^{2q} & \text{constant gate} \\
        \mu_n &= (1-\alpha) \sum_{k<n} (\alpha \rho^2)^k + (\alpha \rho^2)^n & \text{switch}

    A constant update gate has no gain, and :math:`z = \sigma(b_z)`. The other limit is a gate whose gain is so large
    that it is either open or closed; :math:`\alpha` is the share of closed ones (:func:`marginal`). :math:`\rho` is
    that of :func:`shaping`. For tanh, :math:`\mu_n = \rho^{2n}`.

    Args:
        cell: ``"gru_reset_before"``, ``"gru"`` or ``"tanh"``.
        gains: a :class:`Gains` of the cell. The gain of z must be 0 for a constant gate; for a switch it is used for
            :math:`\beta = b_z / a_z` only.
        n: number of steps, at least 0.
        C_h: mean square of the units, of :func:`fixed_points`.
        biases: means of the biases, by gate; missing ones are 0.
        switch: the update gate is a switch.

    Returns:
        mu_n; infinity if it exceeds the range of float64.

    Raises:
        ValueError: the cell or a name is unknown, a gain is missing or negative, ``n`` or ``C_h`` is negative, or the
            gain of z is not that of the limit: 0 of a constant gate, positive of a switch.

    Source: Can, Krishnamurthy and Schwab 2020, equations 139 and 141, and 135 with another last term; see the
    documentation.

    >>> gains = rnnkern.analysis.Gains(2.4, 0.0, 0.0)
    >>> squared_singular_values("gru_reset_before", gains, 1, 0.0)
    0.61
    """
    caller = "squared_singular_values"
    gates = gates_of(caller, cell, gains, biases, cells=FIXED_POINT_CELLS)
    check_not_negative(caller, "n", n)
    rho, z = shaping(C_h, gains, biases, cell=cell), gates.get("z")
    if z is None:
        return constant_gate(0.0, rho, n)
    if switch != (z.gain > 0):
        wanted = "positive with `switch`" if switch else "0 without `switch`"
        raise ValueError(f"{caller}: the gain of z must be {wanted}, got {z.gain}")
    if switch and not C_h > 0:
        raise ValueError(f"{caller}: `C_h` must be positive with `switch`, got {C_h}")
    return binary_gate(closed_share(C_h, z.bias / z.gain), rho, n) if switch else constant_gate(sigmoid(z.bias), rho, n)


def constant_gate(z: float, rho: float, n: int) -> float:
    """mu_n of a constant gate: the mean of |z + (1-z) rho e^(i theta)|^(2n) over the circle (141). It is a
    trigonometric polynomial of degree n, whose mean over more than n points is exact."""
    theta = torch.arange(n + 1, dtype=torch.float64) * (2 * math.pi / (n + 1))
    radius = (1 - z) * rho
    square = (z - radius) ** 2 + 4 * z * radius * torch.cos(theta / 2).square()
    return square.pow(n).mean().item()


def binary_gate(alpha: float, rho: float, n: int) -> float:
    """mu_n of a switch: (135), whose last term lacks the factor 1 - alpha, because J^n contains the term without z."""
    factor = alpha * rho**2
    powers = torch.tensor(factor, dtype=torch.float64) ** torch.arange(n + 1)
    return ((1 - alpha) * powers[:-1].sum() + powers[-1]).item()
