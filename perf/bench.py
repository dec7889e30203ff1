"""Every operator's benchmark, one after the other: what ``make bench`` runs."""

import sys
from collections.abc import Sequence

from perf import (
    gather_attention,
    linear_scan,
    moment_filter,
    orthogonal,
    orthogonal_factors,
    orthogonal_step,
    overhead,
    recurrence,
    relevancy,
    sab,
)

RUNS = (
    (recurrence, ["--compiled"]),
    (recurrence, ["--packed"]),
    (recurrence, ["--layers", "2"]),
    (recurrence, ["--bidirectional"]),
    (overhead, []),
    (orthogonal, []),
    (orthogonal_step, []),
    (orthogonal_factors, []),
    (relevancy, []),
    (sab, []),
    (gather_attention, []),
    (linear_scan, []),
    (moment_filter, []),
)
"""A family's cases and the options that they run with."""


def main(argv: Sequence[str]) -> None:
    for family, options in RUNS:
        family.main([*options, *argv])


if __name__ == "__main__":
    main(sys.argv[1:])
