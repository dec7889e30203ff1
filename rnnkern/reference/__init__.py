"""The equations in plain PyTorch: the ground truth for every kernel, and the fallback where no kernel is available."""

from rnnkern.reference._gather_attention import gather_attention
from rnnkern.reference._givens import givens_product, givens_recurrence
from rnnkern.reference._linear_scan import linear_scan, linear_scan_backward
from rnnkern.reference._moment_filter import moment_filter
from rnnkern.reference._orthogonal import (
    cayley,
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
    empty_state,
    given_scores,
    relevancy_recurrence,
)
from rnnkern.reference._sab import SABMemory, SABState, begin_sab, sab_recurrence

__all__ = [
    "CELLS", "RelevancyMemory", "RelevancyState", "SABMemory", "SABState", "Tangents", "begin_sab",
    "binding_recurrence", "cayley", "empty_state", "gather_attention", "given_scores", "givens_product",
    "givens_recurrence", "householder_product", "linear_scan", "linear_scan_backward", "moment_filter",
    "project_orthogonal", "recurrence", "recurrence_tangent", "relevancy_recurrence", "sab_recurrence",
    "schur_weight", "similarity", "skew", "skew_exp",
]  # fmt: skip
