"""Stable weights of continuous-time recurrences, and their discretization."""

import math

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern import ops
from rnnkern.parametrizations._initial import orthogonal_matrix
from rnnkern.parametrizations._parametrization import Parametrization, register

MAPS = {
    "exp": (lambda m, b: -m.exp(), lambda g, b: (-g).log()),
    "softplus": (lambda m, b: -torch.logaddexp(m, torch.zeros_like(m)), lambda g, b: (-torch.expm1(g)).log() - g),
    "inverse": (lambda m, b: -1 / (m.square() + b), lambda g, b: (-1 / g - b).clamp(min=0).sqrt()),
    "direct": (lambda m, b: m.clone(), lambda g, b: g),
}
"""The functions g(m), each with its inverse on its range."""
NEAR_ZERO = 0.05
"""For smaller |z|, (exp(z) - 1) / z is computed by its series."""


class _Stable(Parametrization):
    """Base class of parametrizations with eigenvalues g(m), or exp(g(m) dt) if dt is given, registered by
    :func:`stable`."""

    def __init__(
        self, like: Tensor, stable_map: str, dt: float | None, b: float, timescales: tuple[float, float]
    ) -> None:  # fmt: skip
        super().__init__(like)
        if stable_map not in MAPS:
            raise ValueError(f"stable: `stable_map` must be one of {tuple(MAPS)}, got {stable_map!r}")
        if dt is not None and not 0 < dt < math.inf:
            raise ValueError(f"stable: `dt` must be positive or None, got {dt}")
        if not 0 < b < math.inf:
            raise ValueError(f"stable: `b` must be positive, got {b}")
        shortest, longest = timescales
        least = b if stable_map == "inverse" else 0
        if not (0 < shortest <= longest < math.inf and shortest >= least):
            wanted = "positive and ascending" + (f", and at least b = {b} for the map 'inverse'" if least else "")
            raise ValueError(f"stable: `timescales` must be {wanted}, got {timescales}")
        self.stable_map, self.dt, self.b, self.timescales = stable_map, dt, b, (shortest, longest)

    def rates(self, m: Tensor) -> Tensor:
        """g(m), the eigenvalues of the continuous-time weight, shaped like ``m``."""
        return MAPS[self.stable_map][0](m, self.b)

    def eigenvalues(self, m: Tensor) -> Tensor:
        """Eigenvalues of the weight, shaped like ``m``."""
        return self.rates(m) if self.dt is None else (self.dt * self.rates(m)).exp()

    def drawn(self, *shape: int) -> Tensor:
        """Initial m."""
        dtype, device = self.place()
        shortest, longest = map(math.log, self.timescales)
        uniform = torch.rand(shape, dtype=torch.float64, device=device)
        rates = -(-(shortest + (longest - shortest) * uniform)).exp()
        return MAPS[self.stable_map][1](rates, self.b).to(dtype)

    def reached(self, eigenvalues: Tensor) -> Tensor:
        """The m that gives these eigenvalues of the weight, in float64.

        Raises:
            ValueError: an eigenvalue is outside the range of the map.
        """
        if self.dt is None:
            g, low, high = eigenvalues, -math.inf, math.inf
        else:
            g, low, high = eigenvalues.log() / self.dt, 0.0, math.inf
        if self.stable_map != "direct":
            fastest = -1 / self.b if self.stable_map == "inverse" else -math.inf
            low, high = (fastest, 0.0) if self.dt is None else (math.exp(fastest * self.dt), 1.0)
        within = (eigenvalues >= low) & (eigenvalues < high) & g.isfinite()
        if not within.all():
            of = "" if len(self.sizes) == 1 else "eigenvalues of "
            got = f"{eigenvalues.min():.6g} to {eigenvalues.max():.6g}"
            wanted = f"in [{low:g}, {high:g})"
            raise ValueError(f"stable: {of}the weight must be {wanted}, got {got}")
        return MAPS[self.stable_map][1](g, self.b)

    def checked(self, weight: Tensor) -> Tensor:
        self.check("stable", weight)
        return weight.detach().double()

    def extra_repr(self) -> str:
        return f"{self.sizes}, stable_map={self.stable_map}, dt={self.dt}"


class StableDiagonal(_Stable):
    """Parametrization of a diagonal weight, stored as a vector (N,), by m (N,)."""

    def weight(self, m: Tensor) -> Tensor:
        return self.eigenvalues(m)

    def draw(self) -> Tensor:
        return self.drawn(*self.sizes)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Raises ValueError if the weight has the wrong shape or is outside the range of the map."""
        return self.reached(self.checked(weight)).to(weight.dtype)


class StableMatrix(_Stable):
    """Parametrization of a symmetric weight V diag(f(m)) V^T, V = B exp(A), by A (..., N, N) and m (..., N)."""

    rotating = (0,)
    bases = ("base",)

    def __init__(self, like: Tensor, *args) -> None:
        super().__init__(like, *args)
        self.register_buffer("base", torch.empty_like(like, requires_grad=False))

    def weight(self, A: Tensor, m: Tensor) -> Tensor:
        V = self.base + self.base @ ops.skew_exp(A, form="expm1")
        return (V * self.eigenvalues(m).unsqueeze(-2)) @ V.mT

    def draw(self) -> tuple[Tensor, Tensor]:
        self.base.copy_(orthogonal_matrix(self.base, "haar"))
        return torch.zeros_like(self.base), self.drawn(*self.sizes[:-1])

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Sets B to eigenvectors and A to zero.

        Raises:
            ValueError: the weight has the wrong shape, is not finite or not symmetric, or has an eigenvalue outside the
                range of the map.
        """
        W = self.checked(weight)
        if not torch.allclose(W, W.mT, rtol=0, atol=math.sqrt(torch.finfo(weight.dtype).eps) * float(W.abs().max())):
            raise ValueError("stable: the weight must be symmetric")
        eigenvalues, V = torch.linalg.eigh(W)
        m = self.reached(eigenvalues)
        self.base.copy_(V)
        return torch.zeros_like(self.base), m.to(self.base)


class DirectMatrix(_Stable):
    """Parametrization of an unconstrained matrix M, or of exp(M dt) if dt is given, by M (..., N, N)."""

    def weight(self, M: Tensor) -> Tensor:
        return M.clone() if self.dt is None else torch.linalg.matrix_exp(self.dt * M)

    def draw(self) -> Tensor:
        rates = self.drawn(*self.sizes[:-1])
        V = orthogonal_matrix(rates.new_empty(self.sizes), "haar")
        return (V * rates.unsqueeze(-2)) @ V.mT

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Raises ValueError if the weight has the wrong shape, is not finite, or would need a matrix logarithm."""
        if self.dt is not None:
            raise ValueError("stable: with the map 'direct' and a `dt`, assign to the parameter instead")
        return self.checked(weight).to(weight.dtype)


def stable(
    module: Module, name: str, stable_map: str = "exp", dt: float | None = None, *, b: float = 0.5,
    timescales: tuple[float, float] = (1.0, 100.0),
) -> Module:  # fmt: skip
    r"""Keeps the weight of a continuous-time recurrence :math:`\dot h = W h + \dots` stable, or that of its
    discretization with time step dt.

    .. math::
        W = g(M), \quad g(m) = -e^m, \quad -\log(1 + e^m), \quad -\frac{1}{m^2 + b} \quad \text{or} \quad m; \qquad
        \bar\lambda = \exp(g(m) \, dt)

    The first three maps are negative for every m, so no optimizer step makes the weight unstable; near 0 the weight
    changes more and more slowly. The last map guarantees nothing and serves for comparison. Stability of W refers to
    continuous time. The discretization with ``dt`` is exact, whereas a forward Euler step diverges for dt |g| > 2.

    A vector (N,) stands for a diagonal weight; m is the parameter ``module.parametrizations.<name>.original``. A matrix
    (..., N, N) is symmetric, :math:`V \operatorname{diag}(g(m)) V^\top`, which covers g(M) for every symmetric M.
    ``original0`` is A, whose strict lower triangle defines a skew-symmetric matrix, :math:`V = B \exp(A)` with a buffer
    B, and ``original1`` is m (..., N). (For a matrix M that is not symmetric, :math:`-e^M` can have eigenvalues with
    positive real part, from eigenvalues of M with imaginary part :math:`\pi`.) With ``"direct"`` the parameter is the
    matrix M itself, which is symmetric only initially.

    Args:
        module: a module with a real floating-point parameter or buffer ``name``, (N,) or (..., N, N), that is not
            parametrized.
        name: name of the weight.
        stable_map: g: ``"exp"``, ``"softplus"``, ``"inverse"`` or ``"direct"``, in the order of the formulas above.
        dt: time step, in the unit of ``timescales``. The weight is then that of one step, :math:`\exp(g(M) \, dt)`.
            With None the weight is W.
        b: constant of ``"inverse"``, whose eigenvalues lie between -1 / b and 0.
        timescales: smallest and largest time constant for the initialization g = -1 / tau, where tau is log-uniform
            between the two. V is initialized uniformly over all rotations.

    Returns:
        The module. You can assign ``module.<name> = W`` if the eigenvalues of W are in the range of the map; a matrix
        must be symmetric.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type.

    Source: Wang, Li and Li 2024, section 3.4 and appendix E.

    >>> module = torch.nn.Module()
    >>> module.weight = torch.nn.Parameter(torch.empty(5))
    >>> _ = rnnkern.parametrizations.stable(module, "weight", stable_map="softplus", dt=0.1)
    >>> module.weight.shape, bool(((module.weight > 0.9) & (module.weight < 1)).all())
    (torch.Size([5]), True)
    """

    def make(weight: Tensor) -> Parametrization:
        kind = StableDiagonal if weight.dim() == 1 else DirectMatrix if stable_map == "direct" else StableMatrix
        return kind(weight, stable_map, dt, b, timescales)

    return register("stable", module, name, make, diagonal=True)


def zero_order_hold(rates: Tensor, dt: float | Tensor) -> tuple[Tensor, Tensor]:
    r"""Computes the exact step of :math:`\dot h = w \odot h + u` for a u that is constant during the step.

    .. math::
        h(t + dt) = \bar\lambda \odot h(t) + \bar\beta \odot u, \qquad \bar\lambda = e^{w \, dt}, \quad
        \bar\beta = \int_0^{dt} e^{w s} ds = \frac{e^{w \, dt} - 1}{w}

    Args:
        rates: w, of any shape; 0 is allowed.
        dt: time step, a number or a tensor that broadcasts with ``rates``.

    Returns:
        :math:`\bar\lambda` and :math:`\bar\beta`, shaped like ``rates`` (like ``rates * dt`` for a tensor).

    >>> rnnkern.parametrizations.zero_order_hold(torch.tensor([0.0, -50.0]), 0.1)[1]
    tensor([0.1000, 0.0199])
    """
    z = rates * dt
    small = z.abs() < NEAR_ZERO
    near, far = torch.where(small, z, 0), torch.where(small, 1, z)
    series = torch.ones_like(z)
    for k in range(9, 1, -1):
        series = 1 + near / k * series
    return z.exp(), dt * torch.where(small, series, torch.expm1(far) / far)
