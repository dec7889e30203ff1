"""exp of skew-symmetric matrices by their eigenvalues in float64, an algorithm that is unlike those of the kernels."""

import math

import torch
from torch import Tensor


def whole(A: Tensor) -> Tensor:
    """The skew-Hermitian matrix whose strict lower triangle (and imaginary diagonal) is in ``A``."""
    lower = A.tril(-1)
    diagonal = torch.diag_embed(1j * A.diagonal(dim1=-2, dim2=-1).imag) if A.is_complex() else 0
    return lower - lower.mH + diagonal


def off_orthogonal(V: Tensor) -> float:
    """The largest element of V^H V - I."""
    V = V.detach().to(torch.complex128 if V.is_complex() else torch.float64)
    return (V.mH @ V - torch.eye(V.shape[-1])).abs().max().item() if V.numel() else 0.0


class Spectrum:
    """A skew-symmetric matrix whose multiples are exact in float32: its entries have 11 bits, and the factors 12."""

    def __init__(self, size: int):
        self.matrix = torch.randn(size, size, dtype=torch.float64).half().double().tril(-1)
        self.values, self.vectors = torch.linalg.eigh(1j * whole(self.matrix))
        self.norm = self.values.abs().max().item()

    def factor(self, rho: float) -> float:
        """A factor that scales the 2-norm to at most ``rho``."""
        if self.norm == 0:
            return 1.0
        mantissa, exponent = math.frexp(rho / self.norm)
        return math.ldexp(math.floor(mantissa * 2**12), exponent - 12)

    def exp(self, factor: float) -> Tensor:
        return ((self.vectors * torch.exp(-1j * factor * self.values)) @ self.vectors.mH).real

    def expm1(self, factor: float) -> Tensor:
        half = torch.exp(-0.5j * factor * self.values)
        return ((self.vectors * (-2j * torch.sin(factor * self.values / 2) * half)) @ self.vectors.mH).real

    def gradient(self, factor: float, upstream: Tensor) -> Tensor:
        """The gradient with respect to the entries of A that are read (Daleckii and Krein); divided differences are
        computed as means of exponentials times sinc."""
        angles = factor * self.values
        mean, difference = ((angles[:, None] + angles) / 2, (angles[:, None] - angles) / 2)
        divided = torch.exp(1j * mean) * torch.sinc(difference / math.pi)
        inner = self.vectors.mH @ upstream.to(torch.complex128) @ self.vectors
        whole_gradient = (self.vectors @ (inner * divided) @ self.vectors.mH).real
        return (whole_gradient - whole_gradient.mT).tril(-1)
