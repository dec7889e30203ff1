"""Fused operators. The functions check their arguments and call the kernels in ``torch.ops.rnnkern``."""

from rnnkern.ops import flops  # noqa: F401  (registers formulas)
from rnnkern.ops._orthogonal.givens import givens_product
from rnnkern.ops._orthogonal.givens_recurrence import givens_recurrence
from rnnkern.ops._orthogonal.householder import householder_product
from rnnkern.ops._orthogonal.orthogonal import cayley, project_orthogonal, schur_weight, skew_exp
from rnnkern.ops._recurrence.recurrence import recurrence
from rnnkern.ops._recurrence.recurrence_tangent import recurrence_tangent
from rnnkern.ops._relational.binding_recurrence import binding_recurrence
from rnnkern.ops._relational.similarity import similarity
from rnnkern.ops._relevancy.gather_attention import gather_attention
from rnnkern.ops._relevancy.relevancy import RelevancyState, relevancy_recurrence
from rnnkern.ops._relevancy.sab import SABState, sab_recurrence
from rnnkern.ops._scan.linear_scan import linear_scan
from rnnkern.ops._scan.moment_filter import moment_filter
from rnnkern.ops.dispatch import Choice, explain

__all__ = [
    "Choice", "RelevancyState", "SABState", "binding_recurrence", "cayley", "explain", "gather_attention",
    "givens_product", "givens_recurrence", "householder_product", "linear_scan", "moment_filter", "project_orthogonal",
    "recurrence", "recurrence_tangent", "relevancy_recurrence", "sab_recurrence", "schur_weight", "similarity",
    "skew_exp",
]  # fmt: skip
