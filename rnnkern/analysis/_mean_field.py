"""Mean field theory of random gated networks: correlations in the steady state."""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from rnnkern.analysis._gains import Gate, gates_of, sigmoid
from rnnkern.analysis._spectral import UnitSamples


class MeanField(NamedTuple):
    """Result of :func:`mean_field`."""

    C: Tensor
    C_phi: Tensor
    kappa: float
    variance: dict[str, float]
    correlation_time: float
    samples: UnitSamples


@torch.no_grad()
def mean_field(
    cell: str, gains: Mapping[str, float], biases: Mapping[str, float] | None = None,
    variances: Mapping[str, float] | None = None, *, lags: int = 20, population: int = 20_000, steps: int = 120,
    generator: Generator | None = None,
) -> MeanField:  # fmt: skip
    r"""Computes the correlations of the units of a large random network without input, in its steady state.

    In a large network, the pre-activations of the gates are independent Gaussian processes, whose covariances follow
    from those of the units: :math:`a_k^2 C_h(t, t') + v_k` of gate k, and :math:`a_h^2 C_r(t, t') C_h(t, t') + v_h` of
    the candidate of a GRU with the reset gate before the product. A population of independent units is simulated: in
    each step the covariances with all earlier steps are estimated from the population, and each unit draws its
    pre-activations given its earlier ones. Errors are of order :math:`1/\sqrt{\text{population}}`, and the steady state
    must be reached within the first half of the steps.

    For ``"tanh"``, and for ``"gru_reset_before"`` if gain and variance of z are 0, the correlations are computed
    without a population instead, from

    .. math::
        C_h(k) = \frac{1-\kappa}{1+\kappa} \sum_m \kappa^{|m|} C_\phi(k - m),

    by iteration from short correlations; ``steps`` has no influence then. (With gain of z this equation does not hold:
    z and h are correlated.)

    Args:
        cell: ``"gru"``, ``"gru_reset_before"``, ``"lstm"`` or ``"tanh"``.
        gains: a :class:`Gains` of the cell.
        biases, variances: means and variances of the biases, by gate; missing ones are 0.
        lags: number of time differences.
        population: number M of units.
        steps: number of steps T; at least 2 * lags + 2 with a population. Time grows as M T^2: 1 s by default.
        generator: CPU generator. The default is torch's global generator.

    Returns:
        A tuple ``MeanField`` of

        - ``C``: :math:`E[h_t h_{t+k}]` for k = 0 to ``lags``, (lags + 1,), float64.
        - ``C_phi``: the same for tanh of the candidate's pre-activation.
        - ``kappa``: mean of the update or forget gate; 0 for tanh.
        - ``variance``: variance of each gate's process. Of h of ``"gru"``, it is that of w, before the reset gate.
        - ``correlation_time``: 1/2 + the sum of C(k) / C(0) over k > 0, with a population up to ``lags``.
        - ``samples``: the :class:`UnitSamples` of the last step, M units.

    Raises:
        ValueError: the cell or a name is unknown, a gain or variance is missing or negative, or a number is too small.

    Source: Can, Krishnamurthy and Schwab 2020, equations 44 to 50 and 53 to 56, without a method to solve them.

    >>> found = mean_field("gru_reset_before", rnnkern.analysis.Gains(3.0, 0.0, 1.0), lags=5, population=100)
    >>> [round(C, 4) for C in found.C[[0, 1, 5]].tolist()], round(found.correlation_time, 2)
    ([0.3387, 0.3339, 0.2455], 9.09)
    """
    gates = gates_of("mean_field", cell, gains, biases, variances)
    exact = cell == "tanh" or (cell == "gru_reset_before" and gates["z"].gain == gates["z"].variance == 0)
    for name, value, least in (("lags", lags, 0), ("population", population, 2)):
        if value < least:
            raise ValueError(f"mean_field: `{name}` must be at least {least}, got {value}")
    if not exact and steps < 2 * lags + 2:
        raise ValueError(f"mean_field: `steps` must be at least 2 * lags + 2 = {2 * lags + 2}, got {steps}")
    if exact:
        return _exact(cell, gates, lags, population, generator)
    return _simulated(cell, gates, lags, population, steps, generator)


# ---- a population

NUGGET = 1e-9
"""Relative variance of white noise that is added to each process: covariances of slow units are close to singular."""


class _Process:
    """A Gaussian process of each of M units, drawn one step at a time."""

    def __init__(self, gate: Gate, population: int, steps: int, generator: Generator | None) -> None:
        self.gate, self.generator = gate, generator
        self.factor = torch.zeros(steps, steps, dtype=torch.float64)  # Cholesky factor of the covariance
        self.noise = torch.empty(steps, population, dtype=torch.float64)

    def draw(self, covariances: Tensor) -> Tensor:
        """The values at step t (M,), given the covariances (t + 1,) without gain and variance of the bias of what the
        recurrent weight multiplies with that of steps 0 to t."""
        t = len(covariances) - 1
        row = self.gate.gain**2 * covariances + self.gate.variance
        known = torch.linalg.solve_triangular(self.factor[:t, :t], row[:t, None], upper=False).squeeze(1)
        rest = row[t] * (1 + NUGGET) - known.square().sum()
        self.factor[t, :t] = known
        self.factor[t, t] = rest.clamp(min=NUGGET * row[t].item()).sqrt().clamp(min=1e-150)
        self.noise[t].normal_(generator=self.generator)
        return self.gate.bias + self.factor[t, : t + 1] @ self.noise[: t + 1]


def _simulated(
    cell: str, gates: Mapping[str, Gate], lags: int, population: int, steps: int, generator: Generator | None
) -> MeanField:
    own = dict(gates)
    if cell == "gru":
        own["h"] = Gate(gates["h"].gain, 0.0, 0.0)  # of w; the bias is added outside of the reset gate
    processes = {name: _Process(gate, population, steps, generator) for name, gate in own.items()}

    def normal() -> Tensor:
        return torch.randn(population, generator=generator, dtype=torch.float64)

    h = torch.empty(steps + 1, population, dtype=torch.float64)
    phi, opened, reset = (torch.empty(steps, population, dtype=torch.float64) for _ in range(3))
    h[0] = torch.tanh(normal())
    c, fixed = normal(), gates["h"].bias + math.sqrt(gates["h"].variance) * normal()
    w = None
    for t in range(steps):
        C = h[: t + 1] @ h[t] / population
        pre = {name: process.draw(C) for name, process in processes.items() if name != "h"}
        if cell == "gru_reset_before":
            reset[t] = torch.sigmoid(pre["r"])
            C = C * (reset[: t + 1] @ reset[t] / population)
        pre["h"] = processes["h"].draw(C)
        if cell == "gru":
            w = pre["h"]
            pre["h"] = fixed + torch.sigmoid(pre["r"]) * w
        opened[t], phi[t] = torch.sigmoid(pre["f" if cell == "lstm" else "z"]), torch.tanh(pre["h"])
        old = c if cell == "lstm" else h[t]
        if cell == "lstm":
            c = opened[t] * c + torch.sigmoid(pre["i"]) * phi[t]
            h[t + 1] = torch.sigmoid(pre["o"]) * torch.tanh(c)
        else:
            h[t + 1] = opened[t] * h[t] + (1 - opened[t]) * phi[t]
    late = steps // 2
    C, C_phi = (_of_lags(values[late:], lags) for values in (h, phi))
    mean_reset = reset[late:].square().mean().item() if cell == "gru_reset_before" else 1.0
    variance = {name: gate.gain**2 * C[0].item() + gate.variance for name, gate in gates.items()}
    if cell == "gru_reset_before":
        variance["h"] = gates["h"].gain ** 2 * mean_reset * C[0].item() + gates["h"].variance
    elif cell == "gru":
        variance["h"] -= gates["h"].variance
    samples = UnitSamples(cell, old, pre, c if cell == "lstm" else phi[-1].clone(), w)
    return MeanField(C, C_phi, opened[late:].mean().item(), variance, _correlation_time(C), samples)


def _of_lags(values: Tensor, lags: int) -> Tensor:
    """Mean products of rows k apart, for k = 0 to ``lags``."""
    gram = values @ values.T / values.shape[1]
    return torch.stack([gram.diagonal(k).mean() for k in range(lags + 1)])


def _correlation_time(C: Tensor) -> float:
    return 0.5 + (C[1:].sum() / C[0]).item() if C[0] > 0 else math.nan


# ---- without gain of the update gate

ORDERS, REACH, STEP = 1024, 12.0, 0.01
"""Number of Hermite polynomials, and their grid."""
LONGEST, ITERATIONS, ACCURACY = 512, 2000, 1e-11


@functools.cache
def _hermite() -> tuple[Tensor, Tensor]:
    """Nodes x (P,), and rows (ORDERS, P) whose products with f(x) are the coefficients of f in the Hermite polynomials
    that are orthonormal for the normal measure."""
    x = torch.arange(-REACH, REACH + STEP / 2, STEP, dtype=torch.float64)
    weight = torch.exp(-x.square() / 2)
    rows = [weight / weight.sum()]
    rows.append(x * rows[0])
    for n in range(1, ORDERS - 1):
        rows.append((x * rows[n] - math.sqrt(n) * rows[n - 1]) / math.sqrt(n + 1))
    return x, torch.stack(rows)


def _correlated(f: Tensor, correlation: Tensor) -> Tensor:
    """E f(x) f(y) for normal x and y of these correlations (K,), f given at the nodes: Mehler's sum over n of the
    squared coefficient times correlation^n. A correlation of 1 takes the mean square itself."""
    _, rows = _hermite()
    squares = (rows @ f).square()
    rest = squares.flip(0).cumsum(0).flip(0)
    squares = squares[: max(1, int((rest > 1e-16 * rest[0]).sum()))].tolist()
    total = torch.zeros_like(correlation)
    for square in reversed(squares):
        total = total * correlation + square
    return torch.where(correlation >= 1, rows[0] @ f.square(), total)


def _exact(cell: str, gates: Mapping[str, Gate], lags: int, population: int, generator: Generator | None) -> MeanField:
    h, r = gates["h"], gates.get("r")
    kappa = sigmoid(gates["z"].bias) if r is not None else 0.0
    count = max(LONGEST, lags + 1)
    filtered = _filter(kappa, count)
    x, _ = _hermite()
    C_r = torch.ones(count, dtype=torch.float64)
    C = 0.5 ** torch.arange(1, count + 1, dtype=torch.float64)
    for _ in range(ITERATIONS):
        if r is not None:
            C_r = _transformed(torch.sigmoid(r.bias + r.deviation(C[0].item()) * x), r.gain**2 * C + r.variance)
        covariance = h.gain**2 * C_r * C + h.variance
        C_phi = _transformed(torch.tanh(h.bias + covariance[0].sqrt() * x), covariance)
        before, C = C, filtered @ C_phi
        if (C - before).abs().max() < ACCURACY:
            break
    variance = {name: gate.gain**2 * C[0].item() + gate.variance for name, gate in gates.items()}
    variance["h"] = covariance[0].item()
    samples = _draw(cell, gates, C, covariance, kappa, population, generator)
    return MeanField(C[: lags + 1], C_phi[: lags + 1], kappa, variance, _correlation_time(C), samples)


def _transformed(f: Tensor, covariance: Tensor) -> Tensor:
    """Covariances of f of a process, f at the nodes scaled by the process' standard deviation."""
    if covariance[0] < 1e-200:
        return (f[len(f) // 2] ** 2).expand_as(covariance)
    return _correlated(f, covariance / covariance[0])


def _filter(kappa: float, count: int) -> Tensor:
    """The matrix of (50) without gain of z: C_phi to C_h. Beyond the last lag, correlations are constant."""
    off = torch.full((count - 1,), -kappa, dtype=torch.float64)
    matrix = torch.eye(count, dtype=torch.float64) * (1 + kappa**2) + torch.diag(off, 1) + torch.diag(off, -1)
    matrix[0, 1] *= 2  # symmetric in the lag
    matrix[-1, -1] -= kappa
    return (1 - kappa) ** 2 * torch.linalg.inv(matrix)


def _draw(
    cell: str, gates: Mapping[str, Gate], C: Tensor, covariance: Tensor, kappa: float, population: int,
    generator: Generator | None,
) -> UnitSamples:  # fmt: skip
    """Units of one step: the candidate's process over the window that h remembers, and normal pre-activations."""
    window = 2 if kappa == 0 else min(len(C), 2 + math.ceil(36 / -math.log(kappa)))
    lag = torch.arange(window)
    toeplitz = covariance[(lag - lag.unsqueeze(1)).abs()] + 1e-12 * covariance[0] * torch.eye(window)
    toeplitz.diagonal().clamp_(min=1e-300)
    noise = torch.randn(population, window, generator=generator, dtype=torch.float64)
    y = gates["h"].bias + noise @ torch.linalg.cholesky(toeplitz).T
    phi = torch.tanh(y)
    remembered = (1 - kappa) * kappa ** torch.arange(window - 1, dtype=torch.float64).flip(0)
    old = phi[:, :-1] @ remembered
    pre = {"h": y[:, -1].clone()}
    if cell != "tanh":
        r = gates["r"]
        drawn = torch.randn(population, generator=generator, dtype=torch.float64)
        pre |= {"z": torch.full_like(old, gates["z"].bias), "r": r.bias + r.deviation(C[0].item()) * drawn}
    return UnitSamples(cell, old, pre, phi[:, -1].clone())
