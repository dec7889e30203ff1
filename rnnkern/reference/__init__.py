"""The equations in plain PyTorch: the oracle of every kernel, and its stand-in where no kernel serves."""

from rnnkern.reference.orthogonal import cayley, project_orthogonal, schur_weight, skew, skew_exp
from rnnkern.reference.recurrence import CELLS, recurrence

__all__ = ["CELLS", "cayley", "project_orthogonal", "recurrence", "schur_weight", "skew", "skew_exp"]
