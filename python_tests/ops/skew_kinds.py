"""Skew-symmetric matrices with different kinds of spectra, for tests of the bound on the 2-norm."""

import math

import torch
from torch import Tensor

from python_tests.ops.orthogonal_oracle import whole


def turned(sigma: Tensor, size: int) -> Tensor:
    """A matrix with eigenvalues +-i sigma in a random basis; the other eigenvalues are 0."""
    Q, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))
    return whole((Q @ blocks(sigma, size) @ Q.mT).tril(-1))


def blocks(sigma: Tensor, size: int) -> Tensor:
    S = torch.zeros(size, size, dtype=torch.float64)
    for k, x in enumerate(sigma.tolist()):
        S[2 * k, 2 * k + 1], S[2 * k + 1, 2 * k] = -x, x
    return S


def first_vector(size: int) -> Tensor:
    """The start vector of the power method."""
    mixed = (torch.arange(1, size + 1) * 2654435761) & 0xFFFFFFFF
    mixed = mixed ^ (mixed >> 15)
    return (mixed - ((mixed >> 31) << 32)).double()


def unseen(size: int, below: float) -> Tensor:
    """The largest eigenvectors are orthogonal to the start vector of the power method, and the other eigenvalues are
    ``below`` times theirs: six steps cannot find them from rounding errors alone."""
    pairs = (size - 1) // 2
    if pairs < 1:
        return torch.zeros(size, size, dtype=torch.float64)
    basis = torch.randn(size, size, dtype=torch.float64)
    basis[:, 0] = first_vector(size)
    Q, _ = torch.linalg.qr(basis)
    sigma = below * torch.ones(pairs, dtype=torch.float64)
    sigma[0] = 1
    Q = Q.roll(-1, 1)  # the start vector becomes the last column
    return whole((Q @ blocks(sigma, size) @ Q.mT).tril(-1))


def uniform(*size: int) -> Tensor:
    return torch.rand(size, dtype=torch.float64)


def low_rank(size: int) -> Tensor:
    U, W = torch.randn(2, size, 2, dtype=torch.float64)
    return U @ W.mT - W @ U.mT


def few_large(size: int, part: float) -> Tensor:
    sigma = uniform(size // 2)
    sigma[: math.ceil(part * len(sigma))] = 1
    return turned(sigma, size)


KINDS = {
    "random": lambda size: whole(torch.randn(size, size, dtype=torch.float64)),
    "henaff": lambda size: blocks(math.pi * (2 * uniform(size // 2) - 1), size),
    "henaff, turned": lambda size: turned(math.pi * (2 * uniform(size // 2) - 1), size),
    "cayley": lambda size: blocks(torch.tan(math.pi / 4 * uniform(size // 2)), size),
    "low rank": low_rank,
    "one huge block": lambda size: blocks(1e-3 + (torch.arange(size // 2) == size // 4), size),
    "one huge eigenvalue": lambda size: turned(1e-3 * uniform(size // 2) + (torch.arange(size // 2) == 0), size),
    "a cluster": lambda size: turned(0.95 + 0.05 * uniform(size // 2), size),
    "all equal": lambda size: turned(torch.ones(size // 2), size),
    "half equal, half zero": lambda size: turned((torch.arange(size // 2) % 2).double(), size),
    "a tenth equal": lambda size: few_large(size, 0.1),
    "unseen, the rest half": lambda size: unseen(size, 0.5),
    "unseen, the rest nine tenths": lambda size: unseen(size, 0.9),
    "one row": lambda size: whole((torch.arange(size) == 0) * torch.randn(size, size, dtype=torch.float64)),
    "nearly zero": lambda size: 1e-30 * whole(torch.randn(size, size, dtype=torch.float64)),
}
"""Functions of N."""


def of_norm(S: Tensor, rho: float) -> Tensor:
    norm = torch.linalg.matrix_norm(S, 2)
    return S if norm < 1e-20 else S * (rho / norm)
