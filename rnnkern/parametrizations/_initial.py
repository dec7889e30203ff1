"""Random orthogonal and unitary matrices, for initialization."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rnnkern.parametrizations._layout import positive_qr

INITS = ("henaff", "cayley", "haar", "identity")


def orthogonal_matrix(like: Tensor, init: str = "henaff", orthogonal_map: str = "exp") -> Tensor:
    r"""Draws a random orthogonal matrix with determinant 1, for initialization.

    ``"henaff"`` and ``"cayley"`` apply ``orthogonal_map`` to a matrix with blocks :math:`\begin{pmatrix} 0 & s \\ -s &
    0 \end{pmatrix}` along the diagonal; if N is odd, the last entry of the result is 1.

    Args:
        like: a tensor (..., N, N) that gives shape, dtype and device. The matrices of a batch are drawn independently.
        init: ``"henaff"``: s ~ U(-pi, pi) (Henaff et al. 2016). ``"cayley"``: s = tan(t / 2), t ~ U(0, pi / 2)
            (Helfrich et al. 2018). ``"haar"``: uniform over all rotations. ``"identity"``: the identity matrix.
        orthogonal_map: ``"exp"``, ``"cayley"`` or ``"scaled_cayley"``.

    Returns:
        (..., N, N), computed in float64 and rounded once.

    Raises:
        ValueError: ``init`` is unknown.

    >>> V = rnnkern.parametrizations.orthogonal_matrix(torch.empty(5, 5), "haar")
    >>> torch.allclose(V.T @ V, torch.eye(5), atol=1e-6)
    True
    """
    check_init("orthogonal_matrix", init)
    *batch, size = like.shape[:-1]
    options = {"dtype": torch.float64, "device": like.device}
    if init == "haar":
        return _rotation(torch.randn(*batch, size, size, **options)).to(like.dtype)
    s = skew_entries(torch.rand(*batch, size // 2, **options), init)
    return _blocks(s if orthogonal_map == "exp" else -2 * s.atan(), size).to(like.dtype)


def check_init(function: str, init: str | None) -> None:
    if init not in INITS:
        raise ValueError(f"{function}: `init` must be one of {INITS}, got {init!r}")


def skew_entries(uniform: Tensor, init: str) -> Tensor:
    """s, computed from numbers drawn from U(0, 1)."""
    return {
        "henaff": math.pi * (2 * uniform - 1),
        "cayley": (math.pi / 4 * uniform).tan(),
        "identity": 0 * uniform,
    }[init]


def reflection_vectors(shape: Sequence[int], init: str, **options: Any) -> Tensor:
    """Initial V (..., N, m) for :func:`rnnkern.ops.householder_product`, in float64.

    ``"haar"``: the first m columns of the product are those of a uniformly random orthogonal matrix (Stewart 1980).
    Otherwise each pair of reflections rotates a plane like a block of :func:`orthogonal_matrix` with ``"exp"``; if m is
    odd, the last reflection reflects the last axis.
    """
    *batch, size, count = shape
    options["dtype"] = torch.float64
    if init == "haar":
        V = torch.randn(*batch, size, count, **options).tril()
        diagonal = V.diagonal(dim1=-2, dim2=-1)
        diagonal -= torch.linalg.vector_norm(V, dim=-2)
        if count == size and size:
            V[..., -1, -1] = 1  # a single entry has no plane to rotate in
        return V
    pairs = count // 2
    angle = skew_entries(torch.rand(*batch, pairs, **options), init) / 2
    V = torch.zeros(*batch, size, count, **options)
    first = V[..., : 2 * pairs, : 2 * pairs]
    first.diagonal(dim1=-2, dim2=-1)[..., ::2] = 1
    first.diagonal(1, -2, -1)[..., ::2] = angle.cos()
    first.diagonal(dim1=-2, dim2=-1)[..., 1::2] = angle.sin()
    if count % 2:
        V[..., -1, -1] = 1
    return V


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
    return positive_qr(torch.randn(like.shape, dtype=torch.complex128, device=like.device)).to(like.dtype)


def _rotation(gaussian: Tensor) -> Tensor:
    """A matrix from the Haar measure (Mezzadri 2007, section 5), with one column negated if the determinant is -1."""
    Q = positive_qr(gaussian)
    if Q.shape[-1]:
        Q[..., 0] *= torch.linalg.det(Q).sign().unsqueeze(-1)
    return Q


def _blocks(angle: Tensor, size: int) -> Tensor:
    """Blocks (cos, sin; -sin, cos) for angles (..., N // 2), and a 1 if N is odd."""
    ones = angle.new_ones(*angle.shape[:-1], size % 2)
    V = torch.diag_embed(torch.cat([angle.cos().repeat_interleave(2, -1), ones], -1))
    V.diagonal(1, -2, -1)[..., ::2] = angle.sin()
    V.diagonal(-1, -2, -1)[..., ::2] = -angle.sin()
    return V
