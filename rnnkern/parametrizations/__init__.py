"""Parametrizations that keep a weight orthogonal, unitary, nearly orthogonal, in Schur form or stable."""

from rnnkern.parametrizations._candidate import OrthogonalGate, orthogonal_gate
from rnnkern.parametrizations._factors import Givens, Householder
from rnnkern.parametrizations._initial import INITS, orthogonal_matrix
from rnnkern.parametrizations._orthogonal import Orthogonal, orthogonal
from rnnkern.parametrizations._parametrization import reset_parameters
from rnnkern.parametrizations._schur import Schur, schur
from rnnkern.parametrizations._spectral import SpectralMargin, spectral_margin
from rnnkern.parametrizations._stable import stable, zero_order_hold
from rnnkern.parametrizations._unitary import ComplexGivens, Fourier, unitary, unitary_matrix

__all__ = [
    "INITS", "ComplexGivens", "Fourier", "Givens", "Householder", "Orthogonal", "OrthogonalGate", "Schur",
    "SpectralMargin", "orthogonal", "orthogonal_gate", "orthogonal_matrix", "reset_parameters", "schur",
    "spectral_margin", "stable", "unitary", "unitary_matrix", "zero_order_hold",
]  # fmt: skip
