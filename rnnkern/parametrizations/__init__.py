"""What keeps a weight orthogonal, or in Schur form, under any optimiser (torch.nn.utils.parametrize)."""

from rnnkern.parametrizations.factors import Givens, Householder
from rnnkern.parametrizations.initial import INITS, orthogonal_matrix
from rnnkern.parametrizations.orthogonal import Orthogonal, orthogonal
from rnnkern.parametrizations.parametrization import reset
from rnnkern.parametrizations.schur import Schur, schur, schur_penalty

__all__ = [
    "INITS",
    "Givens",
    "Householder",
    "Orthogonal",
    "Schur",
    "orthogonal",
    "orthogonal_matrix",
    "reset",
    "schur",
    "schur_penalty",
]
