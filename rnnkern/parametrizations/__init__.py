"""Parametrizations that keep a weight orthogonal, unitary, nearly orthogonal, in Schur form or stable."""

from rnnkern.parametrizations._initial import orthogonal_matrix, unitary_matrix
from rnnkern.parametrizations._orthogonal import Orthogonal, orthogonal, orthogonal_gate
from rnnkern.parametrizations._parametrization import reset_parameters
from rnnkern.parametrizations._schur import schur
from rnnkern.parametrizations._spectral import spectral_margin
from rnnkern.parametrizations._stable import stable, zero_order_hold
from rnnkern.parametrizations._unitary import unitary

__all__ = [
    "Orthogonal", "orthogonal", "orthogonal_gate", "orthogonal_matrix", "reset_parameters", "schur", "spectral_margin",
    "stable", "unitary", "unitary_matrix", "zero_order_hold",
]  # fmt: skip
