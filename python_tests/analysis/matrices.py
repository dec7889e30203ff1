"""Matrices whose memory, departure and transients are known."""

import torch
from torch import Tensor

F64 = torch.float64


def triangle(size: int, alpha: float, beta: float = 0.0, d: float = 0.0) -> Tensor:
    """(3.4.2) of the thesis: d on the diagonal, alpha below it, beta in the rest of the lower triangle."""
    below = torch.full((size, size), beta, dtype=F64).tril(-2)
    return below + alpha * torch.eye(size, dtype=F64).roll(1, 0).tril(-1) + d * torch.eye(size, dtype=F64)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def rotation(size: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(drawn(size, size, seed=seed)).Q


def rotated(W: Tensor, seed: int = 0) -> Tensor:
    P = rotation(len(W), seed)
    return P @ W @ P.T
