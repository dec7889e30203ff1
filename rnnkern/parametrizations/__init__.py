"""What keeps a weight orthogonal, nearly so, or in Schur form, under any optimiser (torch.nn.utils.parametrize)."""

from rnnkern.parametrizations.factors import Givens, Householder
from rnnkern.parametrizations.initial import INITS, orthogonal_matrix
from rnnkern.parametrizations.orthogonal import Orthogonal, orthogonal
from rnnkern.parametrizations.parametrization import reset
from rnnkern.parametrizations.schur import Schur, schur, schur_penalty
from rnnkern.parametrizations.spectral import SingularBand, singular_band

__all__ = [
    "INITS",
    "Givens",
    "Householder",
    "Orthogonal",
    "Schur",
    "SingularBand",
    "orthogonal",
    "orthogonal_matrix",
    "reset",
    "schur",
    "schur_penalty",
    "singular_band",
]
