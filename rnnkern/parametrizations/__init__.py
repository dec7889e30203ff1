"""What keeps a weight orthogonal or unitary, nearly so, in Schur form or stable, under any optimiser."""

from rnnkern.parametrizations._candidate import OrthogonalCandidate, orthogonal_candidate
from rnnkern.parametrizations._factors import Givens, Householder
from rnnkern.parametrizations._initial import INITS, orthogonal_matrix
from rnnkern.parametrizations._orthogonal import Orthogonal, orthogonal
from rnnkern.parametrizations._parametrization import reset
from rnnkern.parametrizations._schur import Schur, schur, schur_penalty
from rnnkern.parametrizations._spectral import SingularBand, singular_band
from rnnkern.parametrizations._stable import discretise, stable
from rnnkern.parametrizations._unitary import ComplexGivens, Fourier, unitary, unitary_matrix

__all__ = [
    "INITS",
    "ComplexGivens",
    "Fourier",
    "Givens",
    "Householder",
    "Orthogonal",
    "OrthogonalCandidate",
    "Schur",
    "SingularBand",
    "discretise",
    "orthogonal",
    "orthogonal_candidate",
    "orthogonal_matrix",
    "reset",
    "schur",
    "schur_penalty",
    "singular_band",
    "stable",
    "unitary",
    "unitary_matrix",
]
