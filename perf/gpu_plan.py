"""Writes the measurements of dense layers on a GPU to csrc/recurrence/cuda/measured_table.h, from which a kernel is
chosen at run time.

``python -m perf.gpu_plan perf/results/nvidia-h200 --capability 9``, followed by a new build. Rows of other major
capabilities are kept.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from perf import record
from perf.gpu_tables import DIRECTIONS, Figures, Key
from perf.record import OURS

TABLE = record.ROOT / "csrc" / "recurrence" / "cuda" / "measured_table.h"
PEER = "torch.nn"


def kernel(figures: Figures, key: Key, provider: str) -> str:
    """Name of the kernel that ran, according to ``explain``."""
    said = figures.rows[(*key, "forward", provider)]["kernel"]
    found = re.search(r": (block|cluster|grid|stepwise), for ", said)
    return found[1] if found else ""


def rows(figures: Figures, major: int) -> Iterator[str]:
    """For each cell, dtype, H and B: the kernel with the shortest time for forward and backward, and how many times
    faster than torch.nn it is."""
    for key in figures.keys:
        case, cell, shape, dtype = key
        if case != "dense":
            continue
        _, batch, hidden = map(int, shape.split("x"))
        times = {
            provider: figures.number(key, "forward+backward", provider, "ms_50")
            for provider in (OURS, *figures.rivals(key))
        }
        measured = {provider: ms for provider, ms in times.items() if ms != "" and kernel(figures, key, provider)}
        if not measured:
            continue
        best = min(measured, key=measured.__getitem__)
        ratios = [times_faster(figures, key, direction, best) for direction in DIRECTIONS]
        yield " ".join(map(str, (major, cell, dtype, hidden, batch, kernel(figures, key, best), *ratios)))


def times_faster(figures: Figures, key: Key, direction: str, provider: str) -> float:
    """How many times faster than torch.nn a provider is; 0 if torch.nn lacks the cell."""
    mine, its = (figures.number(key, direction, name, "ms_50") for name in (provider, PEER))
    return 0.0 if its == "" or mine == "" else record.significant(its / mine)


def text(before: str, lines: Sequence[str], major: int) -> str:
    """The text of the table, with the rows of this capability replaced."""
    kept = [line for line in re.findall(r'^"(.*)\\n"$', before, re.MULTILINE) if line.split()[0] != str(major)]
    quoted = "".join(f'"{line}\\n"\n' for line in (*kept, *lines))
    return (
        f"// Written by `python -m perf.gpu_plan`: major capability, cell, dtype, H, B, kernel, times faster.\n{quoted}"
    )


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("results", type=Path, help="the device's folder")
    parser.add_argument("--capability", type=int, required=True, help="its major compute capability")
    parser.add_argument("--table", type=Path, default=TABLE)
    chosen = parser.parse_args(argv)
    lines = list(rows(Figures(record.read(chosen.results / "recurrence.csv")), chosen.capability))
    if not lines:
        sys.exit(f"perf.gpu_plan: no dense layer was measured in {chosen.results}")
    chosen.table.write_text(text(chosen.table.read_text(), lines, chosen.capability))


if __name__ == "__main__":
    main(sys.argv[1:])
