"""Weights of continuous-time recurrences that stay stable, and their discretisation."""

import math

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern import ops
from rnnkern.parametrizations._initial import orthogonal_matrix
from rnnkern.parametrizations._parametrization import Parametrization, register

MAPS = ("exp", "softplus", "inverse", "direct")
NEAR_ZERO = 0.05
"""Below it (exp(z) - 1) / z is summed up as a series."""


class _Stable(Parametrization):
    """Of eigenvalues g(m), or exp(g(m) dt) where there is a dt; see :func:`stable`, which makes one."""

    def __init__(
        self, like: Tensor, stable_map: str, dt: float | None, b: float, timescales: tuple[float, float]
    ) -> None:  # fmt: skip
        super().__init__()
        if stable_map not in MAPS:
            raise ValueError(f"stable: `stable_map` must be one of {MAPS}, got {stable_map!r}")
        if dt is not None and not 0 < dt < math.inf:
            raise ValueError(f"stable: `dt` must be positive or None, got {dt}")
        if not 0 < b < math.inf:
            raise ValueError(f"stable: `b` must be positive, got {b}")
        shortest, longest = timescales
        least = b if stable_map == "inverse" else 0
        if not (0 < shortest <= longest < math.inf and shortest >= least):
            wanted = "positive, in order" + (f" and for the map 'inverse' at least b = {b}" if least else "")
            raise ValueError(f"stable: `timescales` must be {wanted}, got {timescales}")
        self.stable_map, self.dt, self.b, self.timescales = stable_map, dt, b, (shortest, longest)
        self._shape, self._begun = tuple(like.shape), (like.dtype, like.device)

    def rates(self, m: Tensor) -> Tensor:
        """g(m), like ``m``: eigenvalues of the continuous-time weight."""
        if self.stable_map == "exp":
            return -m.exp()
        if self.stable_map == "softplus":
            return -torch.logaddexp(m, torch.zeros_like(m))
        return m.clone() if self.stable_map == "direct" else -1 / (m.square() + self.b)

    def eigenvalues(self, m: Tensor) -> Tensor:
        """Of the weight, like ``m``."""
        return self.rates(m) if self.dt is None else (self.dt * self.rates(m)).exp()

    def drawn(self, *shape: int) -> Tensor:
        """m to begin with."""
        dtype, device = self._begun
        for original in self.originals:  # it may have moved
            dtype, device = original.dtype, original.device
        shortest, longest = map(math.log, self.timescales)
        uniform = torch.rand(shape, dtype=torch.float64, device=device)
        return self._preimage(-(-(shortest + (longest - shortest) * uniform)).exp()).to(dtype)

    def reached(self, eigenvalues: Tensor) -> Tensor:
        """m for eigenvalues of the weight, in float64.

        Raises:
            ValueError: one is not in the map's range.
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
            of = "" if len(self._shape) == 1 else "eigenvalues of "
            got = f"{eigenvalues.min():.6g} to {eigenvalues.max():.6g}"
            wanted = f"from {low:g} to {high:g}, without the end"
            raise ValueError(f"stable: {of}the weight must be {wanted}, got {got}")
        return self._preimage(g)

    def _preimage(self, g: Tensor) -> Tensor:
        """m for rates in the map's range."""
        if self.stable_map == "exp":
            return (-g).log()
        if self.stable_map == "softplus":
            return (-torch.expm1(g)).log() - g
        return g if self.stable_map == "direct" else (-1 / g - self.b).clamp(min=0).sqrt()

    def checked(self, weight: Tensor) -> Tensor:
        if tuple(weight.shape) != self._shape:
            raise ValueError(f"stable: the weight must be {self._shape}, got {tuple(weight.shape)}")
        if not weight.isfinite().all():
            raise ValueError("stable: the weight must be finite")
        return weight.detach().double()

    def extra_repr(self) -> str:
        return f"{self._shape}, stable_map={self.stable_map}, dt={self.dt}"


class StableDiagonal(_Stable):
    """Of a diagonal weight, a vector (N,); the parameter is m (N,)."""

    def weight(self, m: Tensor) -> Tensor:
        return self.eigenvalues(m)

    def draw(self) -> Tensor:
        return self.drawn(*self._shape)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Raises ValueError where the weight has another shape or is not in the map's range."""
        return self.reached(self.checked(weight)).to(weight.dtype)


class StableMatrix(_Stable):
    """Of a symmetric weight V diag(f(m)) V^T, V = B exp(A); the parameters are A (..., N, N) and m (..., N)."""

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
        return torch.zeros_like(self.base), self.drawn(*self._shape[:-1])

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Sets B to eigenvectors, and A to zero.

        Raises:
            ValueError: the weight has another shape, is not finite or not symmetric, or an eigenvalue is not in the
                map's range.
        """
        W = self.checked(weight)
        if not torch.allclose(W, W.mT, rtol=0, atol=math.sqrt(torch.finfo(weight.dtype).eps) * float(W.abs().max())):
            raise ValueError("stable: the weight must be symmetric")
        eigenvalues, V = torch.linalg.eigh(W)
        m = self.reached(eigenvalues)
        self.base.copy_(V)
        return torch.zeros_like(self.base), m.to(self.base)


class DirectMatrix(_Stable):
    """Of a free matrix M, or exp(M dt) where there is a dt; the parameter is M (..., N, N)."""

    def weight(self, M: Tensor) -> Tensor:
        return M.clone() if self.dt is None else torch.linalg.matrix_exp(self.dt * M)

    def draw(self) -> Tensor:
        rates = self.drawn(*self._shape[:-1])
        V = orthogonal_matrix(rates.new_empty(self._shape), "haar")
        return (V * rates.unsqueeze(-2)) @ V.mT

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Raises ValueError where the weight has another shape, is not finite, or would need a logarithm."""
        if self.dt is not None:
            raise ValueError("stable: the map 'direct' with a `dt` takes no matrix; assign to the parameter itself")
        return self.checked(weight).to(weight.dtype)


def stable(
    module: Module, name: str, stable_map: str = "exp", dt: float | None = None, *, b: float = 0.5,
    timescales: tuple[float, float] = (1.0, 100.0),
) -> Module:  # fmt: skip
    r"""Keeps the weight of a continuous-time recurrence :math:`\dot h = W h + \dots` stable, or what becomes of it in
    steps of dt.

    .. math::
        W = g(M), \quad g(m) = -e^m, \quad -\log(1 + e^m), \quad -\frac{1}{m^2 + b} \quad \text{or} \quad m; \qquad
        \bar\lambda = \exp(g(m) \, dt)

    The first three are negative for every m, so that no update of an optimizer leads out of what is stable: near 0 the
    weight changes ever more slowly. The last promises nothing and is there to compare with. Stability of W is one of
    continuous time: the discretisation is exact, where a forward Euler step diverges for dt |g| > 2.

    A vector (N,) stands for a diagonal weight; the parameter ``module.parametrizations.<name>.original`` is m. A
    matrix (..., N, N) is symmetric, :math:`V \operatorname{diag}(g(m)) V^\top`, the matrix function of every symmetric
    M: ``original0`` is A, of which the strict lower triangle is read as a skew-symmetric matrix, :math:`V = B \exp(A)`
    with a buffer B, and ``original1`` m (..., N). (Of a matrix that is not symmetric :math:`-e^M` may well have
    eigenvalues to the right of 0: those of M with an imaginary part of :math:`\pi`.) With ``"direct"`` a matrix is M
    itself, symmetric only at first.

    Args:
        module: any, with a parameter or buffer ``name`` (N,) or (..., N, N): real, floating, not parametrized yet.
        name: of the weight.
        stable_map: ``"exp"``, ``"softplus"``, ``"inverse"`` or ``"direct"``, for g above.
        dt: the time step, in the unit of ``timescales``: the weight is that of a step, :math:`\exp(g(M) \, dt)`. None:
            the weight is W.
        b: of ``"inverse"``, whose W reaches from -1 / b to 0.
        timescales: the weight begins with g = -1 / tau, tau log-uniform between these two, and V uniform over all
            rotations.

    Returns:
        The module. ``module.<name> = W`` takes a W whose eigenvalues are in the map's range; a matrix must be
        symmetric.

    Raises:
        ValueError, TypeError: an argument is wrong.

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


def zero_order_hold(rates: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    r"""The exact step of :math:`\dot h = w \odot h + u` over a time in which u stays as it is.

    .. math::
        h(t + dt) = \bar\lambda \odot h(t) + \bar\beta \odot u, \qquad \bar\lambda = e^{w \, dt}, \quad
        \bar\beta = \int_0^{dt} e^{w s} ds = \frac{e^{w \, dt} - 1}{w}

    Args:
        rates: w, of any shape; 0 is among what is allowed.
        dt: the time step.

    Returns:
        :math:`\bar\lambda` and :math:`\bar\beta`, like ``rates``.

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
