"""Complex weights that stay unitary."""

import math

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern import ops
from rnnkern.parametrizations._factors import layers_and_style
from rnnkern.parametrizations._initial import orthogonal_matrix, unitary_matrix
from rnnkern.parametrizations._layout import orthonormal
from rnnkern.parametrizations._parametrization import Based, Parametrization, register


class _Unitary(Parametrization):
    """Base class of unitary parametrizations by real parameters, so that ``module.double()`` makes the weight
    complex128."""

    def empty(self, *originals: Tensor) -> Tensor:
        return originals[0].new_empty(self.sizes, dtype=torch.promote_types(originals[0].dtype, torch.complex64))

    def uniform(self, bound: float, *shape: int) -> Tensor:
        """A batch of tensors of this shape, drawn from U(-bound, bound)."""
        dtype, device = self.place()
        drawn = torch.rand(*self.sizes[:-2], *shape, dtype=torch.float64, device=device)
        return (bound * (2 * drawn - 1)).to(dtype)


class Fourier(_Unitary):
    """Parametrization of a weight D3 R2 F^-1 D2 Pi R1 F D1, registered by :func:`unitary`. Pi is the buffer
    ``order``."""

    rotating = (0, 1)

    def __init__(self, like: Tensor) -> None:
        super().__init__(like)
        self.register_buffer("order", torch.arange(like.shape[-1], device=like.device))

    def weight(self, phases: Tensor, vectors: Tensor) -> Tensor:
        """Applies the factors to the rows of the identity, in O(N^2 log N)."""
        vectors = torch.view_as_complex(vectors)
        v, w = (vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)).unsqueeze(-1).unbind(-3)
        first, second, third = _phase(phases).unsqueeze(-2).unbind(-3)
        eye = torch.eye(self.sizes[-1], dtype=torch.promote_types(phases.dtype, torch.complex64), device=phases.device)
        x = torch.fft.fft(first * eye, norm="ortho")
        x = second * _reflected(x, v)[..., self.order]
        return (third * _reflected(torch.fft.ifft(x, norm="ortho"), w)).mT.contiguous()

    def draw(self) -> tuple[Tensor, ...]:
        size = self.sizes[-1]
        self.order.copy_(torch.randperm(size, device=self.order.device))
        return self.uniform(math.pi, 3, size), self.uniform(1.0, 2, size, 2)


def _phase(angle: Tensor) -> Tensor:
    return torch.complex(angle.cos(), angle.sin())


def _reflected(x: Tensor, v: Tensor) -> Tensor:
    """(I - 2 v v^H) x for each row x (..., K, N), with v (..., N, 1) of length 1."""
    return x - 2 * (x @ v.conj()) @ v.mT


class ComplexGivens(_Unitary):
    """Parametrization of a weight F_L ... F_1 D, registered by :func:`unitary`. A diagonal on the left would be
    redundant with the phases of F_L."""

    rotating = (0, 1, 2)

    def __init__(self, like: Tensor, layers: int | None = None, style: str | None = None) -> None:
        super().__init__(like)
        self.layers, self.style = layers_and_style("unitary", like.shape[-1], layers, style)

    def weight(self, angles: Tensor, phases: Tensor, first: Tensor) -> Tensor:
        product = ops.givens_product(angles, phases=phases, style=self.style, size=self.sizes[-1])
        return product * _phase(first).unsqueeze(-2)

    def draw(self) -> tuple[Tensor, ...]:
        size = self.sizes[-1]
        angles, phases = (self.uniform(math.pi, self.layers, size // 2) for _ in range(2))
        return angles, phases, self.uniform(math.pi, size)


class UnitaryMap(_Unitary, Based):
    """Parametrization of a weight B exp(S) or B (I + S)^-1 (I - S) D, registered by :func:`unitary`. The buffer
    ``base`` (..., N, N, 2) holds the real and imaginary parts of the unitary B."""

    function = "unitary"

    def __init__(self, like: Tensor, unitary_map: str, init: str | None, base: str, rebase_every: int) -> None:
        super().__init__(like, init, base, rebase_every)
        self.unitary_map, self.rotating = unitary_map, (0,) if unitary_map == "exp" else (0, 1)
        self.register_buffer("base", torch.empty(*like.shape, 2, dtype=like.dtype.to_real(), device=like.device))

    def matrix(self, name: str) -> Tensor:
        return torch.view_as_complex(getattr(self, name))

    def weight(self, A: Tensor, phases: Tensor | None = None) -> Tensor:
        V = self._rotated(A)
        return V if phases is None else V * _phase(phases).unsqueeze(-2)

    def _rotated(self, A: Tensor) -> Tensor:
        """B exp(S) or B (I + S)^-1 (I - S), as B plus a difference, because a small S would be rounded away next to
        1."""
        S = torch.complex(A.tril(-1), A.triu().mT)  # only the lower triangle is read
        if self.unitary_map == "exp":
            added = ops.skew_exp(S, form="expm1")
        else:
            added = ops.cayley(S) - torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        B = self.matrix("base")
        return B + B @ added

    def draw(self) -> tuple[Tensor, ...]:
        self.steps, B = 0, self.matrix("base")
        if self.init in ("haar", None):
            B.copy_(unitary_matrix(B))
        else:
            B.copy_(orthogonal_matrix(self.base[..., 0], self.init, self.unitary_map))
        A = torch.zeros_like(self.base[..., 0])
        return (A,) if self.unitary_map == "exp" else (A, math.pi + self.uniform(math.pi, self.sizes[-1]))

    def keep(self, weight: Tensor) -> tuple[Tensor, ...]:
        return self._begin_at(orthonormal("unitary", weight))

    def _begin_at(self, W: Tensor) -> tuple[Tensor, ...]:
        """Sets B to W. Returns the new parameters, zero."""
        self.base.copy_(torch.view_as_real(W))
        A = torch.zeros_like(self.base[..., 0])
        return (A,) if self.unitary_map == "exp" else (A, A.new_zeros(A.shape[:-1]))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Sets B to the weight and the parameters to zero.

        Raises:
            ValueError: the matrix has the wrong shape or is not unitary.
        """
        self.check(self.function, weight, finite=False)
        W = weight.detach().to(torch.complex128)
        distance = (W.mH @ W - torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)).abs()
        if distance.numel() and not distance.max() <= math.sqrt(torch.finfo(weight.dtype).eps):
            raise ValueError(f"unitary: the weight must be unitary, got max |W^H W - I| = {distance.max():.3g}")
        return self._begin_at(W)

    @torch.no_grad()
    def rebase(self) -> None:
        """Moves the base to the current weight, B <- B exp(S) and S <- 0, and removes rounding errors by one
        Newton-Schulz step. With a dynamic base this happens after every ``rebase_every`` steps of an optimizer."""
        A = self.originals[0]
        self.base.copy_(torch.view_as_real(ops.project_orthogonal(self._rotated(A), steps=1)))
        A.zero_()

    def extra_repr(self) -> str:
        return f"{self.sizes}, unitary_map={self.unitary_map}, {super().extra_repr()}"


MAPS = ("fourier", "givens", "exp", "scaled_cayley")
GROUP = ("exp", "scaled_cayley")
"""Maps from the Lie algebra, which can keep a matrix."""


def unitary(
    module: Module, name: str, unitary_map: str = "fourier", *, layers: int | None = None, style: str | None = None,
    init: str | None = None, base: str = "static", rebase_every: int = 1,
) -> Module:  # fmt: skip
    r"""Keeps a square complex weight of a module unitary during training with any optimizer.

    .. math::
        W = D_3 R_2 \mathcal F^{-1} D_2 \Pi R_1 \mathcal F D_1, \quad F_L \cdots F_2 F_1 D, \quad B \exp(S)
        \quad \text{or} \quad B (I + S)^{-1} (I - S) D

    Each D is diagonal with entries :math:`e^{i \omega}`, each R is a reflection :math:`I - 2 v v^H / |v|^2`,
    :math:`\mathcal F` is the discrete Fourier transform, and :math:`\Pi` is a permutation that is drawn once and stored
    in the buffer ``order`` (N,). Each F is a layer of :func:`rnnkern.ops.givens_product` with phases. All parameters
    are real and initialized uniformly: angles and phases in (-pi, pi), real and imaginary parts of v in (-1, 1). The
    weight is computed once per optimizer step, however often you access it.

    S is skew-Hermitian, S_ij = A_ij + i A_ji below the diagonal and S_ii = i A_ii, for a real A (..., N, N) that starts
    at zero: N^2 parameters for all unitary matrices. The unitary buffer B holds the initial weight: the matrix that is
    there, or one that ``init`` draws.

    Args:
        module: a module with a parameter or buffer ``name`` (..., N, N), complex64 or complex128, that is not
            parametrized.
        name: name of the weight.
        unitary_map: ``"fourier"`` has 7 N parameters under ``module.parametrizations.<name>``: ``original0``, the
            phases of D_1, D_2 and D_3 (..., 3, N), and ``original1``, the real and imaginary parts of the vectors of
            R_1 and R_2 (..., 2, N, 2). ``"givens"`` has ``original0`` and ``original1``, angles and phases (..., L, N
            // 2), and ``original2``, the phases of D (..., N). ``"exp"`` has ``original0``, A. ``"scaled_cayley"`` has
            ``original0``, A, and ``original1``, the phases of D (..., N), which ``init`` draws from U(0, 2 pi). If you
            created an optimizer before, add these parameters to it.
        layers: L, for ``"givens"``. The default is N for ``"tunable"``, which reaches every unitary matrix, and
            :math:`\log_2 N` for ``"butterfly"``.
        style: of the layers, for ``"givens"``: ``"tunable"``, the default, or ``"butterfly"``.
        init: None, the default, keeps the existing matrix, as in :func:`orthogonal`; only ``"exp"`` and
            ``"scaled_cayley"`` can. The others draw a new B: ``"haar"``, uniform over all unitary matrices, or a real
            matrix by :func:`orthogonal_matrix`: ``"cayley"``, ``"henaff"`` or ``"identity"``. The maps ``"fourier"``
            and ``"givens"`` need ``"uniform"``.
        base, rebase_every: for ``"exp"`` and ``"scaled_cayley"``. ``"dynamic"`` sets B <- B exp(S) and S <- 0 after
            every ``rebase_every`` steps of an optimizer that has A; ``"static"`` keeps B.

    Returns:
        The module. With ``"exp"`` and ``"scaled_cayley"`` you can assign a unitary matrix, ``module.<name> = W``;
        otherwise the weight cannot be assigned.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type.

    Source: fourier: Arjovsky et al. 2016, eq. 6; givens: Jing et al. 2017; exp: Hyland and Rätsch 2017; scaled_cayley:
    Maduranga, Helfrich and Ye 2019.

    >>> module = torch.nn.Module()
    >>> module.W = torch.nn.Parameter(torch.empty(6, 6, dtype=torch.complex64))
    >>> W = rnnkern.parametrizations.unitary(module, "W", init="uniform").W
    >>> torch.allclose(W.mH @ W, torch.eye(6, dtype=torch.complex64), atol=1e-6)
    True
    """

    def make(weight: Tensor) -> Parametrization:
        if unitary_map in GROUP:
            return UnitaryMap(weight, unitary_map, init, base, rebase_every)
        return Fourier(weight) if unitary_map == "fourier" else ComplexGivens(weight, layers, style)

    if unitary_map not in MAPS:
        raise ValueError(f"unitary: `unitary_map` must be one of {MAPS}, got {unitary_map!r}")
    for option, value in {"layers": layers, "style": style}.items():
        if value is not None and unitary_map != "givens":
            raise ValueError(f"unitary: `{option}` applies only to the map 'givens', got {value!r}")
    if unitary_map not in GROUP and init != "uniform":
        reason = " (its factors cannot keep the existing matrix)" if init is None else ""
        raise ValueError(f"unitary: `init` must be 'uniform' for the map {unitary_map!r}{reason}, got {init!r}")
    for option, value, plain in (("base", base, "static"), ("rebase_every", rebase_every, 1)):
        if value != plain and unitary_map not in GROUP:
            raise ValueError(f"unitary: `{option}` applies only to the maps {GROUP}, got {value!r}")
    return register("unitary", module, name, make, field="complex")
