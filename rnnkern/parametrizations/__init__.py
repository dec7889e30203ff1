"""What keeps a weight orthogonal, nearly so, in Schur form or stable, under any optimiser."""

from rnnkern.parametrizations.factors import Givens, Householder
from rnnkern.parametrizations.initial import INITS, orthogonal_matrix
from rnnkern.parametrizations.orthogonal import Orthogonal, orthogonal
from rnnkern.parametrizations.parametrization import reset
from rnnkern.parametrizations.schur import Schur, schur, schur_penalty
from rnnkern.parametrizations.spectral import SingularBand, singular_band
from rnnkern.parametrizations.stable import discretise, stable

__all__ = [
    "INITS",
    "Givens",
    "Householder",
    "Orthogonal",
    "Schur",
    "SingularBand",
    "discretise",
    "orthogonal",
    "orthogonal_matrix",
    "reset",
    "schur",
    "schur_penalty",
    "singular_band",
    "stable",
]
