"""The equations in plain PyTorch: the ground truth for every kernel, and the fallback where no kernel is available."""

from rnnkern.reference._orthogonal import (
    cayley,
    givens_product,
    givens_recurrence,
    householder_product,
    project_orthogonal,
    schur_weight,
    skew,
    skew_exp,
)
from rnnkern.reference._recurrence import CELLS, recurrence
from rnnkern.reference._recurrence_tangent import Tangents, recurrence_tangent
from rnnkern.reference._relational import binding_recurrence, similarity
from rnnkern.reference._relevancy import (
    RelevancyMemory,
    RelevancyState,
    SABMemory,
    SABState,
    begin_sab,
    empty_state,
    gather_attention,
    given_scores,
    relevancy_recurrence,
    sab_recurrence,
)
from rnnkern.reference._scan import linear_scan, linear_scan_backward, moment_filter

__all__ = [
    "CELLS", "RelevancyMemory", "RelevancyState", "SABMemory", "SABState", "Tangents", "begin_sab",
    "binding_recurrence", "cayley", "empty_state", "gather_attention", "given_scores", "givens_product",
    "givens_recurrence", "householder_product", "linear_scan", "linear_scan_backward", "moment_filter",
    "project_orthogonal", "recurrence", "recurrence_tangent", "relevancy_recurrence", "sab_recurrence",
    "schur_weight", "similarity", "skew", "skew_exp",
]  # fmt: skip
