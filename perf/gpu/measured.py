"""Writes the times of dense layers on a GPU to csrc/recurrence/cuda/measured_table.h, from which a kernel is chosen at
run time.

``python -m perf.gpu.measured perf/results/nvidia-h200 --capability 9``, followed by a new build. Rows of other major
capabilities are kept.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from perf import record
from perf.gpu.tables import DIRECTIONS, newest
from perf.record import OURS, Row

TABLE = record.ROOT / "csrc" / "recurrence" / "cuda" / "measured_table.h"
HEAD = "// Written by `python -m perf.gpu.measured`: major capability, cell, dtype, H, B, kernel, times faster.\n"
PEER = "torch.nn"


def rows(measured: Sequence[Row], major: int) -> Iterator[str]:
    """For each cell, dtype, H and B: the kernel with the shortest time for forward and backward, and how many times
    faster than torch.nn it is; 0 if torch.nn lacks the cell."""
    found = newest(measured, "cell", "dtype", "shape", "direction", "provider")
    for cell, dtype, shape in dict.fromkeys(key[:3] for key in found):
        mine = {key[3:]: row for key, row in found.items() if key[:3] == (cell, dtype, shape)}
        ms = {key: float(row["ms_50"]) for key, row in mine.items()}
        kernels = {provider: re.search(r": (block|cluster|grid|stepwise), for ", row["kernel"])
                   for (direction, provider), row in mine.items() if direction == DIRECTIONS[1]}  # fmt: skip
        own = [name for name, kernel in kernels.items() if name.split(", ")[0] == OURS and kernel]
        if dtype == "tf32" or not own:
            continue
        best = min(own, key=lambda name: ms[DIRECTIONS[1], name])
        _, batch, hidden = shape.split("x")
        ratios = [record.significant(ms[way, PEER] / ms[way, best]) if (way, PEER) in ms else 0.0 for way in DIRECTIONS]
        yield " ".join(map(str, (major, cell, dtype, hidden, batch, kernels[best][1], *ratios)))


def text(before: str, lines: Sequence[str], major: int) -> str:
    """The text of the table, with the rows of this capability replaced."""
    kept = [line for line in re.findall(r'^"(.*)\\n"$', before, re.MULTILINE) if line.split()[0] != str(major)]
    return HEAD + "".join(f'"{line}\\n"\n' for line in (*kept, *lines))


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("results", type=Path, help="the device's folder")
    parser.add_argument("--capability", type=int, required=True, help="its major compute capability")
    parser.add_argument("--table", type=Path, default=TABLE)
    chosen = parser.parse_args(argv)
    lines = list(rows(record.read(chosen.results / "gpu-recurrence.csv"), chosen.capability))
    if not lines:
        sys.exit(f"perf.gpu.measured: no layer was measured in {chosen.results}")
    chosen.table.write_text(text(chosen.table.read_text(), lines, chosen.capability))


if __name__ == "__main__":
    main(sys.argv[1:])
