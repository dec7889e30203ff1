"""Samples of orthogonal products."""

import torch
from torch import Tensor

from rnnkern.ops import skew_exp


def givens_sample(
    size: int = 7, layers: int = 5, vectors: int = 6, *batch: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Random (angles, x) for :func:`rnnkern.ops.givens_product`, x (..., R, N)."""
    drawn = 4 * torch.randn(*batch, layers, size // 2), torch.randn(*batch, vectors, size)
    angles, x = (t.to(dtype) for t in drawn)
    return angles, x


def schur_leaves(size: int, *batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random (P, theta, gamma, T) for :func:`rnnkern.ops.schur_weight`, with an orthogonal P in float64."""
    P = skew_exp(torch.randn(*batch, size, size, dtype=torch.float64))
    theta, gamma = torch.randn(*batch, size // 2), 1 + torch.randn(*batch, (size + 1) // 2) / 10
    return P, theta, gamma, torch.randn(*batch, size, size)
