"""What proves an operator: the closeness rule, and one list of samples for tests, opcheck and benchmarks alike."""

from rnnkern.testing.closeness import FACTORS, GROSS, as_reals, assert_close, assert_close_over_draws
from rnnkern.testing.covering import covering_rows
from rnnkern.testing.gather_attention import gather_sample
from rnnkern.testing.givens_recurrence import (
    GIVENS_OPTIONS,
    GivensCall,
    check_givens_recurrence,
    givens_recurrence_sample,
)
from rnnkern.testing.linear_scan import (
    SCAN_OPTIONS,
    Scan,
    check_scan,
    scan_outputs_and_gradients,
    scan_sample,
    scan_samples,
)
from rnnkern.testing.moment_filter import (
    FILTER_OPTIONS,
    Filtering,
    check_filter,
    filter_outputs_and_gradients,
    filter_sample,
)
from rnnkern.testing.orthogonal import givens_sample, householder_sample
from rnnkern.testing.recurrence import (
    DENSE,
    RECURRENCE_OPTIONS,
    RECURRENCE_PARAMS,
    Sample,
    check_recurrence,
    outputs_and_gradients,
    recurrence_sample,
    recurrence_samples,
    takes,
)

__all__ = [
    "DENSE",
    "FACTORS",
    "FILTER_OPTIONS",
    "GIVENS_OPTIONS",
    "GROSS",
    "RECURRENCE_OPTIONS",
    "RECURRENCE_PARAMS",
    "SCAN_OPTIONS",
    "Filtering",
    "GivensCall",
    "Sample",
    "Scan",
    "as_reals",
    "assert_close",
    "assert_close_over_draws",
    "check_filter",
    "check_givens_recurrence",
    "check_recurrence",
    "check_scan",
    "covering_rows",
    "filter_outputs_and_gradients",
    "filter_sample",
    "gather_sample",
    "givens_recurrence_sample",
    "givens_sample",
    "householder_sample",
    "outputs_and_gradients",
    "recurrence_sample",
    "recurrence_samples",
    "scan_outputs_and_gradients",
    "scan_sample",
    "scan_samples",
    "takes",
]
