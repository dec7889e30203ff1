"""Sample calls of the operators, for tests, opcheck and benchmarks."""

from python_tests.samples.agreement import (
    agree,
    assert_same_bits,
    changed,
    draws,
    mostly,
    nudged,
    numbered,
    triples,
)
from python_tests.samples.covering import covering_rows
from python_tests.samples.gather_attention import gather_outputs_and_gradients, gather_sample
from python_tests.samples.givens_recurrence import (
    GIVENS_OPTIONS,
    givens_recurrence_sample,
)
from python_tests.samples.linear_scan import (
    SCAN_OPTIONS,
    scan_outputs_and_gradients,
    scan_sample,
)
from python_tests.samples.moment_filter import (
    FILTER_OPTIONS,
    filter_outputs_and_gradients,
    filter_sample,
    filtered,
)
from python_tests.samples.orthogonal import givens_sample, schur_leaves
from python_tests.samples.recurrence import (
    DENSE,
    EVERY_CELL,
    NORMALISED,
    RECURRENCE_OPTIONS,
    RECURRENCE_PARAMS,
    Sample,
    check_recurrence,
    outputs_and_gradients,
    recurrence_sample,
    recurrence_samples,
    takes,
)
from python_tests.samples.similarity import (
    similarity_outputs_and_gradients,
    similarity_sample,
)

__all__ = [
    "DENSE",
    "EVERY_CELL",
    "FILTER_OPTIONS",
    "GIVENS_OPTIONS",
    "NORMALISED",
    "RECURRENCE_OPTIONS",
    "RECURRENCE_PARAMS",
    "SCAN_OPTIONS",
    "Sample",
    "agree",
    "assert_same_bits",
    "changed",
    "check_recurrence",
    "covering_rows",
    "draws",
    "filter_outputs_and_gradients",
    "filter_sample",
    "filtered",
    "gather_outputs_and_gradients",
    "gather_sample",
    "givens_recurrence_sample",
    "givens_sample",
    "mostly",
    "nudged",
    "numbered",
    "outputs_and_gradients",
    "recurrence_sample",
    "recurrence_samples",
    "scan_outputs_and_gradients",
    "scan_sample",
    "schur_leaves",
    "similarity_outputs_and_gradients",
    "similarity_sample",
    "takes",
    "triples",
]
