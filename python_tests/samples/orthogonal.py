"""Samples of orthogonal products."""

import math

import torch
from torch import Tensor

from rnnkern.ops import skew_exp


def householder_sample(
    size: int = 7, reflections: int = 4, *batch: int, dtype: torch.dtype = torch.float64, requires_grad: bool = False
) -> Tensor:
    """Random V (..., N, m) for :func:`rnnkern.ops.householder_product`, with lengths from 1e-3 to 1e3."""
    lengths = torch.exp((2 * torch.rand(*batch, 1, reflections) - 1) * math.log(1e3))
    return (torch.randn(*batch, size, reflections, dtype=dtype) * lengths).to(dtype).requires_grad_(requires_grad)


def givens_sample(
    size: int = 7, layers: int = 5, vectors: int = 6, *batch: int, dtype: torch.dtype = torch.float64,
    requires_grad: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Random (angles, x) for :func:`rnnkern.ops.givens_product`, x (..., R, N)."""
    drawn = 4 * torch.randn(*batch, layers, size // 2), torch.randn(*batch, vectors, size)
    angles, x = (t.to(dtype).requires_grad_(requires_grad) for t in drawn)
    return angles, x


def schur_leaves(size: int, *batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random (P, theta, gamma, T) for :func:`rnnkern.ops.schur_weight`, with an orthogonal P in float64."""
    P = skew_exp(torch.randn(*batch, size, size, dtype=torch.float64))
    theta, gamma = torch.randn(*batch, size // 2), 1 + torch.randn(*batch, (size + 1) // 2) / 10
    return P, theta, gamma, torch.randn(*batch, size, size)
