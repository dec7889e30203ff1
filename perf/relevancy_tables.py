"""Writes the tables of docs/relevancy.md, each between its marks, and draws its pictures again, from CSVs.

``python -m perf.relevancy_tables cpu-amd-epyc-2t cpu-amd-epyc-1t``
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from perf import memory, record, tables, transfer, transfer_picture
from perf.harness import OURS
from perf.record import Row

PAGE = record.ROOT / "docs" / "relevancy.md"
FILES = {"memory": "memory", "speed": "relevancy"}
"""Of the tables that are not of trainings."""


def markdown(lines: Sequence[Row], words: int) -> str:
    return tables.markdown(list(lines[0]), [list(map(str, line.values())) for line in lines], words)


def about(rows: Sequence[Row]) -> str:
    row, commits = rows[-1], ", ".join(dict.fromkeys(row["commit"] for row in rows))
    return f"{row['device']}, threads {row['threads']}, {row['simd']}, PyTorch {row['torch']}, commit {commits}"


def of_transfer(rows: Sequence[Row]) -> str:
    row = rows[-1]
    lines = [{"layer": f"`{line.pop('model')}`", **line} for line in transfer.ends(rows)]
    sizes = f"K = {row['copied']}, B = {row['batch']}, n = {row['hidden']}, clip {row['clip']}"
    return (
        f"{markdown(lines, 2)}\n\n*Learnt: seeds that reached {row['enough']} at T = {row['trained_length']}, and "
        f"after how many updates; then the accuracy of each seed. {sizes}, {row['held_out']} sequences measured. "
        f"{about(rows)}.*"
    )


def of_memory(rows: Sequence[Row]) -> str:
    row = rows[-1]
    return (
        f"{markdown(memory.fits(rows), 2)}\n\n*Kept: floats per sequence and step for the backward at the longest T; "
        f"allowed: the contract's. ~: the exponent fitted over the longer half. Forward and backward; n = "
        f"{row['hidden']}, B = {row['batch']}, S and R of 10. The peak is of the process. {about(rows)}.*"
    )


def of_speed(rows: Sequence[Row]) -> str:
    """Of each cell and shape what was measured last."""
    cases = {}
    for row in rows:
        if row["direction"] == tables.BOTH:
            cases.setdefault((row["cell"], row["shape"], row["case"]), {})[row["provider"]] = row
    lines = []
    for (cell, shape, sizes), found in cases.items():
        ours, peers = found[OURS], [name for name in found if name != OURS]
        line = {"cell": f"`{cell}`", "T, B, n": shape.replace("x", ", "), "S, R": sizes}
        line |= {f"over {name}": f"{float(found[name]['ratio_50']):.1f}" for name in peers}
        lines.append(line | {"ms": f"{float(ours['ms_50']):.3g}", "over the floor": f"{float(ours['over_floor']):.2f}"})
    return (
        f"{markdown(lines, 3)}\n\n*Times faster, forward and backward, medians of interleaved pairs; the input's "
        f"projection on neither side. {about(rows)}.*"
    )


def main(devices: Sequence[str], page: Path = PAGE, results: Path = record.RESULTS) -> None:
    """Of each table what the last of the devices that has it has."""

    def filled(match) -> str:
        name = FILES.get(match[2], f"transfer-{match[2]}")
        paths = [path for device in devices if (path := results / device / f"{name}.csv").exists()]
        if not paths:
            return f"{match[1]}*Not measured yet.*\n{match[3]}"
        rows = record.read(paths[-1])
        if match[2] == "speed":
            return f"{match[1]}{of_speed(rows)}\n{match[3]}"
        if match[2] == "memory":
            return f"{match[1]}{of_memory(memory.newest(rows))}\n{match[3]}"
        rows = transfer.newest(rows, match[2], "small")
        transfer_picture.draw(page.parent / "images" / f"transfer-{match[2]}-small.png", rows)
        return f"{match[1]}{of_transfer(rows)}\n{match[3]}"

    page.write_text(tables.MARKED.sub(filled, page.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
