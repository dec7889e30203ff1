"""Measures all published speed figures of README and docs and writes their tables; ``make bench`` runs this.

``python -m perf.bench --publish`` on a quiet machine, from a clean commit, measures at most 60 cases in 20 minutes on
two cores. Cases with unsteady ratios are measured again in the remaining time. Without ``--publish`` rows go to
build/perf and no page is written.
"""

import sys
import time
from collections.abc import Sequence

import torch

from perf import (
    family,
    harness,
    linear_scan,
    moment_filter,
    orthogonal,
    orthogonal_factors,
    orthogonal_step,
    overhead,
    record,
    recurrence,
    relevancy,
    tables,
)
from perf.harness import Case
from perf.record import Row

CELLS = ("lstm", "gru", "tanh", "modrelu")
OTHER_CELLS = ("euler", "gru_reset_before", "lstm_projected")
SHAPES = ((50, 8, 64), (100, 32, 60), (100, 32, 100), (100, 32, 200), (220, 64, 128), (256, 32, 256))
MIDDLE, LARGE, LONG, LAST_STEP = (100, 32, 100), (220, 64, 128), (512, 16, 128), (200, 8, 64)
INFERENCE = ((100, 1, 128), (100, 1, 512))
"""(T, B, N): two sizes with one sequence, for inference."""
MINUTES = 19.0
CPU = torch.device("cpu")


def recurrences(
    cells: Sequence[str], shapes: Sequence[tuple[int, ...]], dtype: str = "float32", **options
) -> list[Case]:
    shared = {"packed": False, "with_loop": False, "with_compiled": False, "with_recomputed": False}
    return recurrence.cases(cells, shapes, dtype, **shared | options)


def cases() -> list[Case]:
    """All published cases, in order of priority."""
    todo = [case for shape in SHAPES for case in recurrences(CELLS, [shape], with_recomputed=shape == MIDDLE)]
    todo += recurrences(("lstm", "gru", "tanh"), [LAST_STEP], last_step=True)
    todo += recurrences(("lstm", "gru"), [LARGE], packed=True)
    todo += recurrences(("lstm",), [LONG], packed=True)
    todo += recurrences(("lstm", "gru"), INFERENCE, inference=True)
    todo += overhead.cases([16], [128], "float32", modes=["inference_mode"])
    todo += orthogonal.cases([(512, 512)], 1.0, "float32", CPU)
    todo += orthogonal_step.cases([(200, 10, 128)])
    todo += relevancy.cases(("tanh", "lstm"), [(120, 64, 128, 10, 10)], "float32")
    todo += linear_scan.cases([(512, 32, 1024)], "float32", CPU)[:1]
    todo += moment_filter.cases([(512, 32, 1024)], "float32", CPU)[:1]
    todo += orthogonal_factors.cases({"householder_product": [(512, 64)], "givens_product": [(512, 9)]}, "float32")
    todo += recurrences(OTHER_CELLS, [MIDDLE])
    todo += recurrences(("lstm",), [MIDDLE], layers=2) + recurrences(("lstm",), [MIDDLE], directions=2)
    todo += recurrences(("lstm",), [LARGE], "bfloat16")
    last = recurrences(("lstm", "gru", "modrelu"), SHAPES[:1], with_compiled=True)  # torch.compile is slow
    return todo + [case._replace(labels=case.labels | {"case": "compiled"}) for case in last]


def small(case: Case) -> bool:
    """Whether ``--quick`` includes the case."""
    return case.labels["shape"] in ("50x8x64", "1x1x16", "512x9") and case.labels["case"] != "compiled"


def unsteady(rows: Sequence[Row], todo: Sequence[Case]) -> list[Case]:
    """The cases with a row that was not steady in any measurement."""
    found: dict[tuple[str, ...], bool] = {}
    for row in rows:
        key = (*(row[name] for name in todo[0].labels), row["direction"], row["provider"])
        found[key] = found.get(key, False) or row["steady"]
    names = {key[:-2] for key, ever in found.items() if not ever}
    return [case for case in todo if tuple(case.labels.values()) in names]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Measures all published figures and writes the tables that show them.")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="cases that would begin later are left out")
    chosen, setup = family.begin(parser, argv, "bench")
    if chosen.publish and record.commit().endswith("-dirty"):
        parser.error("--publish: commit first, a figure of changed sources has no name")
    deadline = time.monotonic() + 60 * chosen.minutes
    todo = [case for case in cases() if small(case) or not chosen.quick]
    outcome = harness.attempt(todo, *setup, deadline)
    again = [] if chosen.quick else unsteady(outcome.rows, todo)
    if again and time.monotonic() < deadline:
        longer = setup.effort._replace(seconds=2 * setup.effort.seconds)
        outcome.add(harness.attempt(again, *setup._replace(effort=longer), deadline))
    if outcome.rows:
        print(record.table(harness.comparisons(outcome.rows)))
    for case in unsteady(outcome.rows, todo):
        print(f"gave up, not steady in all of its rows: {' '.join(case.labels.values())}")
    if chosen.publish:
        tables.main()
    outcome.settle()


if __name__ == "__main__":
    main(sys.argv[1:])
