"""Writes the speed table of README and docs/benchmarks.md from the newest rows of a device's CSV.

``python -m perf.tables cpu-amd-epyc-2t``
"""

import csv
import re
import sys
from pathlib import Path

from perf import record

PAGES = ("README.md", "docs/benchmarks.md")
MARKED = re.compile(r"(<!-- speed:begin -->\n).*?(<!-- speed:end -->)", re.DOTALL)
DIRECTION = "forward+backward"


def newest(path: Path) -> list[dict[str, str]]:
    """Of the rows that measure the same, the last one appended."""
    sames = ("case", "cell", "shape", "dtype", "direction", "provider")
    with path.open(newline="") as file:
        rows = {tuple(row[name] for name in sames): row for row in csv.DictReader(file)}
    return [row for row in rows.values() if row["case"] == "dense" and row["dtype"] == "float32"]


def table(rows: list[dict[str, str]]) -> str:
    """A row per shape, a column per cell: how many times faster than the peer, forward and backward."""
    rows = [row for row in rows if row["direction"] == DIRECTION]
    peers = {row["cell"]: row["provider"] for row in rows if row["provider"] != "rnnkern"}
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    ratio = {(row["shape"], row["cell"]): float(row["ratio_50"]) for row in rows if row["provider"] != "rnnkern"}
    names = [f"`{cell}` over {'the loop' if peer == 'loop' else peer}" for cell, peer in peers.items()]
    lines = ["| T, B, N | " + " | ".join(names) + " |", "|---|" + "---:|" * len(peers)]
    for shape in shapes:
        cells = (f"{ratio[shape, cell]:.2f}" for cell in peers)
        lines.append(f"| {shape.replace('x', ', ')} | " + " | ".join(cells) + " |")
    facts = rows[-1]
    lines += [
        "",
        "*Times faster, forward and backward, float32, N = I = H, input projection included on both sides; medians of "
        f"interleaved pairs. {facts['device']}, {facts['threads']} threads, {facts['simd']}, PyTorch {facts['torch']}, "
        f"commit {facts['commit']}. Below 1 rnnkern is slower.*",
    ]
    return "\n".join(lines) + "\n"


def main(device: str) -> None:
    text = table(newest(record.RESULTS / device / "recurrence.csv"))
    for page in PAGES:
        path = record.ROOT / page
        path.write_text(MARKED.sub(lambda match: match[1] + text + match[2], path.read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
