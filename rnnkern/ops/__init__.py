"""Fused operators: public functions with shapes and errors, over ``torch.ops.rnnkern``."""

from rnnkern.ops.dispatch import Choice, explain, use
from rnnkern.ops.orthogonal import cayley, project_orthogonal, schur_weight, skew_exp
from rnnkern.ops.recurrence import recurrence
from rnnkern.ops.recurrence_pair import recurrence_bidirectional, recurrence_stacked

__all__ = [
    "Choice",
    "cayley",
    "explain",
    "project_orthogonal",
    "recurrence",
    "recurrence_bidirectional",
    "recurrence_stacked",
    "schur_weight",
    "skew_exp",
    "use",
]
