"""Complex weights that stay unitary."""

import math

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern import ops
from rnnkern.parametrizations._factors import layers_and_style
from rnnkern.parametrizations._parametrization import Parametrization, register


class _Unitary(Parametrization):
    """Base class of unitary parametrizations by real parameters, so that ``module.double()`` makes the weight
    complex128."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.sizes, self._begun = tuple(like.shape), (like.dtype.to_real(), like.device)

    def empty(self, *originals: Tensor) -> Tensor:
        return originals[0].new_empty(self.sizes, dtype=originals[0].dtype.to_complex())

    def uniform(self, bound: float, *shape: int) -> Tensor:
        """A batch of tensors of this shape, drawn from U(-bound, bound)."""
        dtype, device = self._begun
        for original in self.originals[:1]:  # the device or dtype may have changed
            dtype, device = original.dtype, original.device
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
        eye = torch.eye(self.sizes[-1], dtype=phases.dtype.to_complex(), device=phases.device)
        return self.applied(eye, *self.factors(phases, vectors)).mT.contiguous()

    @staticmethod
    def factors(phases: Tensor, vectors: Tensor) -> tuple[Tensor, ...]:
        """D_1, D_2 and D_3 (..., 1, N), and the normalized vectors of R_1 and R_2 (..., N, 1)."""
        vectors = torch.view_as_complex(vectors)
        vectors = vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        first, second, third = _phase(phases).unsqueeze(-2).unbind(-3)
        return first, second, third, *vectors.unsqueeze(-1).unbind(-3)

    def applied(self, x: Tensor, first: Tensor, second: Tensor, third: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """Applies the weight with these :meth:`factors` to vectors x (..., K, N), in O(K N log N)."""
        x = torch.fft.fft(first * x, norm="ortho")
        x = second * _reflected(x, v)[..., self.order]
        return third * _reflected(torch.fft.ifft(x, norm="ortho"), w)

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


MAPS = ("fourier", "givens")


def unitary(
    module: Module, name: str, unitary_map: str = "fourier", *, layers: int | None = None, style: str | None = None
) -> Module:
    r"""Keeps a square complex weight of a module unitary during training with any optimizer.

    .. math::
        W = D_3 R_2 \mathcal F^{-1} D_2 \Pi R_1 \mathcal F D_1 \quad \text{or} \quad W = F_L \cdots F_2 F_1 D

    Each D is diagonal with entries :math:`e^{i \omega}`, each R is a reflection :math:`I - 2 v v^H / |v|^2`,
    :math:`\mathcal F` is the discrete Fourier transform, and :math:`\Pi` is a permutation that is drawn once and stored
    in the buffer ``order`` (N,). Each F is a layer of :func:`rnnkern.ops.givens_product` with phases. All parameters
    are real and initialized uniformly: angles and phases in (-pi, pi), real and imaginary parts of v in (-1, 1). The
    weight is computed once per optimizer step, however often you access it.

    Args:
        module: a module with a parameter or buffer ``name`` (..., N, N), complex64 or complex128, that is not
            parametrized.
        name: name of the weight.
        unitary_map: ``"fourier"`` has 7 N parameters under ``module.parametrizations.<name>``: ``original0``, the
            phases of D_1, D_2 and D_3 (..., 3, N), and ``original1``, the real and imaginary parts of the vectors of
            R_1 and R_2 (..., 2, N, 2). ``"givens"`` has ``original0`` and ``original1``, angles and phases (..., L, N
            // 2), and ``original2``, the phases of D (..., N). If you created an optimizer before, add these parameters
            to it.
        layers: L, for ``"givens"``. The default is N for ``"tunable"``, which reaches every unitary matrix, and
            :math:`\log_2 N` for ``"butterfly"``.
        style: of the layers, for ``"givens"``: ``"tunable"``, the default, or ``"butterfly"``.

    Returns:
        The module. The weight cannot be assigned.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type.

    Source: fourier: Arjovsky et al. 2016, eq. 6; givens: Jing et al. 2017.

    >>> module = torch.nn.Module()
    >>> module.W = torch.nn.Parameter(torch.empty(6, 6, dtype=torch.complex64))
    >>> W = rnnkern.parametrizations.unitary(module, "W").W
    >>> torch.allclose(W.mH @ W, torch.eye(6, dtype=torch.complex64), atol=1e-6)
    True
    """

    def make(weight: Tensor) -> Parametrization:
        return Fourier(weight) if unitary_map == "fourier" else ComplexGivens(weight, layers, style)

    if unitary_map not in MAPS:
        raise ValueError(f"unitary: `unitary_map` must be one of {MAPS}, got {unitary_map!r}")
    for option, value in {"layers": layers, "style": style}.items():
        if value is not None and unitary_map != "givens":
            raise ValueError(f"unitary: `{option}` applies only to the map 'givens', got {value!r}")
    return register("unitary", module, name, make, field="complex")


@torch.no_grad()
def unitary_matrix(like: Tensor) -> Tensor:
    """Draws a random unitary matrix from the Haar measure (Mezzadri 2007, section 5).

    Args:
        like: a complex tensor (..., N, N) that gives shape, dtype and device.

    Returns:
        (..., N, N), computed in complex128 and rounded once.

    >>> V = rnnkern.parametrizations.unitary_matrix(torch.empty(5, 5, dtype=torch.complex64))
    >>> torch.allclose(V.mH @ V, torch.eye(5, dtype=torch.complex64), atol=1e-6)
    True
    """
    Q, R = torch.linalg.qr(torch.randn(like.shape, dtype=torch.complex128, device=like.device))
    return (Q * R.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2)).to(like.dtype)
