"""What keeps a weight orthogonal or unitary, nearly so, in Schur form or stable, under any optimiser."""

from rnnkern.parametrizations.candidate import OrthogonalCandidate, orthogonal_candidate
from rnnkern.parametrizations.factors import Givens, Householder
from rnnkern.parametrizations.initial import INITS, orthogonal_matrix
from rnnkern.parametrizations.orthogonal import Orthogonal, orthogonal
from rnnkern.parametrizations.parametrization import reset
from rnnkern.parametrizations.schur import Schur, schur, schur_penalty
from rnnkern.parametrizations.spectral import SingularBand, singular_band
from rnnkern.parametrizations.stable import discretise, stable
from rnnkern.parametrizations.unitary import ComplexGivens, Fourier, unitary, unitary_matrix

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
