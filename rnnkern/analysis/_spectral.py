"""Where the eigenvalues of the Jacobian of a random gated network lie."""

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rnnkern.analysis._fixed_points import FIXED_POINT_CELLS, shaping
from rnnkern.analysis._gains import gates_of
from rnnkern.analysis._gauss import nodes, sech2, slope

CHUNK = 1 << 20
"""Largest number of pairs of a point and a term that are evaluated at once."""
LARGEST = 340.0
"""Pre-activations are clamped to it, so that squares of 1 / (1 - z) stay finite; such gates differ from 1 by 1e-148."""


@dataclasses.dataclass(frozen=True)
class UnitSamples:
    r"""Values of the units of a random network at one step, from :func:`unit_samples` or :func:`mean_field`; each
    tensor is (M,), float64.

    Attributes:
        cell: ``"gru"``, ``"gru_reset_before"``, ``"lstm"`` or ``"tanh"``.
        old: the state before the step: h, of an LSTM c.
        gates: pre-activations of the gates by the names of :class:`Gains`; of ``"gru"`` that of h includes the reset
            gate.
        new: the candidate n of a GRU, the new c of an LSTM, the new h of a tanh network.
        product: of ``"gru"``: :math:`w = R_n h + b_n`, which the reset gate multiplies.
    """

    cell: str
    old: Tensor
    gates: Mapping[str, Tensor]
    new: Tensor
    product: Tensor | None = None


class Support:
    r"""The support of the spectrum of a Jacobian: the numbers :math:`\lambda` with :math:`S(\lambda) \ge 0`.

    .. math::
        S(\lambda) = \sum_k \frac{a_k}{|1 + (\lambda - 1) t_k|^2} - 1, \qquad t_k = \frac{1}{1 - z_k}

    z is the update gate of a GRU or the forget gate of an LSTM. Points are given by their distance from 1, because a
    spectrum can be within 1e-15 of 1.

    Args:
        weight: a (K,), float64, not negative.
        pole: t (K,), float64, at least 1.

    Source: Can, Krishnamurthy and Schwab 2020, equations 18, 36 and 114.
    """

    def __init__(self, weight: Tensor, pole: Tensor) -> None:
        kept = weight > 0
        self.weight, self.pole = weight[kept], pole[kept]

    def function(self, points: Tensor) -> Tensor:
        """S at the points :math:`\\lambda - 1` (P,), complex or real: (P,), float64."""
        if points.dim() != 1:
            raise ValueError(f"Support.function: `points` must be (P,), got {tuple(points.shape)}")
        points = torch.as_tensor(points).to(torch.complex128)
        return torch.cat([self._values(x.real, x.imag) for x in self._chunks(points)])

    def boundary(self, x: Tensor) -> Tensor:
        """The imaginary parts y >= 0 (P,) of the boundary at real parts :math:`\\lambda - 1 = x` (P,), and 0 where no
        such point is in the support. S falls as y grows; y is accurate to 14 digits even if it is tiny."""
        if x.dim() != 1:
            raise ValueError(f"Support.boundary: `x` must be (P,), got {tuple(x.shape)}")
        top = math.log(max(float((self.weight / self.pole.square()).sum()), 1e-300)) / 2 + 1e-9
        found = []
        for real in self._chunks(x.to(torch.float64)):
            low, high = torch.full_like(real, top - 500), torch.full_like(real, top)
            inside = self._values(real, low.exp()) > 0
            for _ in range(60):
                middle = (low + high) / 2
                above = self._values(real, middle.exp()) > 0
                low, high = torch.where(above, middle, low), torch.where(above, high, middle)
            found.append(torch.where(inside, low.exp(), 0))
        return torch.cat(found)

    def edge(self) -> float:
        """The largest real point of the boundary, :math:`\\lambda - 1`; -1 if there is none."""
        if not len(self.weight):
            return -1.0
        nearest = -1 / self.pole.max().item()  # the last pole; S falls beyond it
        negative = float(self.weight.sum()) <= 1
        if negative:  # between that pole and 0
            point, low, high = (lambda s: nearest * (1 - math.exp(s))), -500.0, 0.0
        else:
            point, low, high = math.exp, -500.0, 0.0
            while self._value(math.exp(high)) > 0:
                high += 1
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._value(point(middle)) > 0 else (low, middle)
        return point(low)

    def _value(self, point: float) -> float:
        return float(self._values(torch.tensor([point], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)))

    def _values(self, x: Tensor, y: Tensor) -> Tensor:
        square = (1 + x.unsqueeze(1) * self.pole).square() + (y.unsqueeze(1) * self.pole).square()
        return (self.weight / square).sum(1) - 1

    def _chunks(self, points: Tensor) -> tuple[Tensor, ...]:
        return points.split(max(1, CHUNK // max(1, len(self.weight))))


def spectral_support(samples: UnitSamples, gains: Mapping[str, float]) -> Support:
    r"""The support of the spectrum of a random network's Jacobian, for the values of its units at one step.

    .. math::
        S &= \rho^2 E\frac{(1-z)^2}{|\lambda-z|^2} + a_z^2 E\frac{z'^2 (h-n)^2}{|\lambda-z|^2} - 1 &
            \text{gru_reset_before} \\
        S &= E\frac{(1-z)^2 n'^2 (a_h^2 r^2 + a_r^2 r'^2 w^2) + a_z^2 z'^2 (h-n)^2}{|\lambda-z|^2} - 1 & \text{gru} \\
        S &= \frac{E[q]}{|\lambda|^2} + E\frac{p}{|\lambda-f|^2} - 1 & \text{lstm} \\
        S &= \frac{a_h^2 E[n'^2]}{|\lambda|^2} - 1 & \text{tanh}

    with :math:`\rho` as in :func:`shaping`, :math:`q = a_o^2 o'^2 \tanh^2(c_t)` and
    :math:`p = o^2 \tanh'(c_t)^2 (a_f^2 c_{t-1}^2 f'^2 + a_i^2 i'^2 g^2 + a_h^2 i^2 g'^2)`. A prime is the derivative by
    the pre-activation; E is the mean over the units.

    Args:
        samples: values of the units.
        gains: a :class:`Gains` of the same cell.

    Returns:
        A :class:`Support`.

    Raises:
        ValueError: the cell or a name is unknown, or a gain is missing or negative.

    Source: Can, Krishnamurthy and Schwab 2020, theorem 4.1 and corollary 5.2. The paper does not have ``gru``.
    """
    a = {name: gate.gain for name, gate in gates_of("spectral_support", samples.cell, gains).items()}
    old, new, pre = samples.old, samples.new, samples.gates
    one = torch.ones(1, dtype=torch.float64)
    if samples.cell == "tanh":
        return Support(a["h"] ** 2 * (1 - new.square()).square().mean().reshape(1), one)
    forget = pre["f" if samples.cell == "lstm" else "z"].clamp(max=LARGEST)
    pole, gate = 1 + forget.exp(), torch.sigmoid(forget)
    if samples.cell == "lstm":
        i, o, g = torch.sigmoid(pre["i"]), torch.sigmoid(pre["o"]), torch.tanh(pre["h"])
        q = a["o"] ** 2 * (slope(pre["o"]) * torch.tanh(new)).square().mean()
        added = (a["i"] * slope(pre["i"]) * g).square() + (a["h"] * i * sech2(pre["h"])).square()
        p = (o * sech2(new)).square() * ((a["f"] * old * gate).square() + added * pole.square())
        return Support(torch.cat([p / len(p), q.reshape(1)]), torch.cat([pole, one]))
    r, r_slope = torch.sigmoid(pre["r"]), slope(pre["r"])
    steep = (1 - new.square()).square()
    if samples.cell == "gru":
        through = steep * ((a["h"] * r).square() + (a["r"] * r_slope * samples.product).square())
    else:
        of_reset = r.square().mean() + a["r"] ** 2 * r_slope.square().mean() * old.square().mean()
        through = a["h"] ** 2 * steep.mean() * of_reset
    weight = through + (a["z"] * gate * (old - new)).square()
    return Support(weight / len(weight), pole)


def fixed_point_support(
    C_h: float, gains: Mapping[str, float], biases: Mapping[str, float] | None = None,
    variances: Mapping[str, float] | None = None, *, cell: str = "gru_reset_before",
) -> Support:  # fmt: skip
    r"""The support of the spectrum of the Jacobian at a fixed point of a random GRU or tanh network:
    :math:`S = \rho^2 E (1-z)^2 / |\lambda-z|^2 - 1`, with the mean over the normal pre-activation of z.

    Args:
        C_h: mean square of the units, of :func:`fixed_points`.
        gains, biases, variances, cell: as in :func:`fixed_points`.

    Returns:
        A :class:`Support`; its ``edge()`` is the spectral radius minus 1.

    Raises:
        ValueError: as :func:`shaping`.

    Source: Can, Krishnamurthy and Schwab 2020, equations 18 and 114, theorem 4.8.

    >>> from rnnkern.analysis import Gains, fixed_points
    >>> gains = Gains(3.0, 10.0, 1.0)
    >>> f"{fixed_point_support(fixed_points(gains)[0], gains).edge():.4e}"
    '1.6965e-03'
    """
    gates = gates_of("fixed_point_support", cell, gains, biases, variances, FIXED_POINT_CELLS)
    rho = shaping(C_h, gains, biases, variances, cell=cell)
    if cell == "tanh":
        return Support(torch.full((1,), rho**2, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    z = gates["z"]
    x, w = nodes(2 * z.deviation(C_h))
    return Support(rho**2 * w, 1 + (z.bias + z.deviation(C_h) * x).clamp(max=LARGEST).exp())


def spectral_function(samples: UnitSamples, gains: Mapping[str, float], points: Tensor) -> Tensor:
    r"""Computes :math:`S(\lambda)` of :func:`spectral_support`. The eigenvalues of the Jacobian of a large random
    network lie where it is not negative.

    Args:
        samples: values of the units, of :func:`unit_samples` or :func:`mean_field`.
        gains: a :class:`Gains` of the same cell.
        points: :math:`\lambda` (P,), complex or real. For points within 1e-8 of 1 use :meth:`Support.function`, which
            takes :math:`\lambda - 1`.

    Returns:
        (P,), float64.

    Raises:
        ValueError: as :func:`spectral_support`, or ``points`` is not (P,).

    >>> samples = UnitSamples("tanh", torch.zeros(4), {}, torch.zeros(4))
    >>> spectral_function(samples, rnnkern.analysis.Gains(2.0), torch.tensor([1.0, 2.0, 4.0]))
    tensor([ 3.0000,  0.0000, -0.7500], dtype=torch.float64)
    """
    return spectral_support(samples, gains).function(points.to(torch.complex128) - 1)


def spectral_boundary(samples: UnitSamples, gains: Mapping[str, float], x: Tensor) -> Tensor:
    r"""Computes the boundary of the spectrum of a random network's Jacobian: at the real parts x, the imaginary parts
    y >= 0 with :math:`S(x + i y) = 0`. The spectrum is symmetric to the real axis.

    Args:
        samples, gains: as in :func:`spectral_function`.
        x: (P,).

    Returns:
        y (P,), float64, 0 where no point with this real part is in the support.

    Raises:
        ValueError: as :func:`spectral_support`, or ``x`` is not (P,).

    >>> samples = UnitSamples("tanh", torch.zeros(4), {}, torch.zeros(4))
    >>> spectral_boundary(samples, rnnkern.analysis.Gains(2.0), torch.tensor([0.0, 2.5]))
    tensor([2.0000, 0.0000], dtype=torch.float64)
    """
    return spectral_support(samples, gains).boundary(x.to(torch.float64) - 1)


def spectral_edge(samples: UnitSamples, gains: Mapping[str, float]) -> float:
    """Computes the largest real number in the support of the spectrum of a random network's Jacobian.

    Args:
        samples, gains: as in :func:`spectral_function`.

    Returns:
        The edge. In a large network, the spectral radius is close to it.

    Raises:
        ValueError: as :func:`spectral_support`.

    >>> samples = UnitSamples("tanh", torch.zeros(4), {}, torch.zeros(4))
    >>> round(spectral_edge(samples, rnnkern.analysis.Gains(2.0)), 12)
    2.0
    """
    return 1 + spectral_support(samples, gains).edge()
