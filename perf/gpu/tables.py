"""Tables of what ran on a GPU: short ones for the end of a run, and those of docs/gpu.md."""

from collections.abc import Callable, Sequence
from pathlib import Path

from perf import record
from perf.harness import OURS
from perf.record import Row, significant

DIRECTIONS = ("forward", "forward+backward")


def newest(rows: Sequence[Row], *names: str) -> dict[tuple[str, ...], Row]:
    """The newest row for each combination of values of these columns."""
    return {tuple(row[name] for name in names): row for row in rows}


def pair(found: dict[tuple[str, ...], Row], key: tuple[str, ...], provider: str, column: str) -> str:
    """A value forward, and the same with the backward pass."""
    values = [found.get((*key, direction, provider)) for direction in DIRECTIONS]
    return ", ".join("-" if row is None else f"{significant(float(row[column])):.3g}" for row in values)


def recurrence(rows: Sequence[Row]) -> list[Row]:
    """A line per cell and size: how many times faster than torch.nn for each precision, and microseconds per step in
    bfloat16."""
    found = newest(rows, "cell", "shape", "dtype", "direction", "provider")
    precisions = list(dict.fromkeys(row["dtype"] for row in rows))
    lines = []
    for cell, shape in dict.fromkeys((row["cell"], row["shape"]) for row in rows):
        line = {"cell": cell, "T x B x H": shape}
        line |= {name: pair(found, (cell, shape, name), "torch.nn", "ratio_50") for name in precisions}
        lines.append(line | {"ms, bfloat16": pair(found, (cell, shape, "bfloat16"), OURS, "ms_50")})
    return lines


def operators(rows: Sequence[Row]) -> list[Row]:
    """A line per case: milliseconds, and how many times faster than each peer."""
    found = newest(rows, "op", "case", "cell", "shape", "dtype", "direction", "provider")
    lines = []
    for key in dict.fromkeys(key[:5] for key in found):
        peers = dict.fromkeys(each[-1] for each in found if each[:5] == key and each[-1] != OURS)
        ratios = [f"{pair(found, key, peer, 'ratio_50')} {peer}" for peer in peers]
        line = {"operator": key[0], "case": f"{key[1]}, {key[2]}", "sizes": key[3], "dtype": key[4]}
        line |= {"ms": pair(found, key, OURS, "ms_50"), "times faster than": "; ".join(ratios) or "-"}
        lines.append(line)
    return lines


def memory(rows: Sequence[Row]) -> list[Row]:
    """A line per layer: peak memory and time of the longest sequence."""
    return [
        {"layer": layer, "form": form, "T": row["T"], "peak MB": significant(float(row["peak_bytes"]) / 1e6),
         "ms": significant(1e3 * float(row["seconds"]))}
        for (layer, form), row in newest(rows, "layer", "form").items()
    ]  # fmt: skip


def state(rows: Sequence[Row]) -> list[Row]:
    """A line per stage: how many jobs ended how; then what is wrong or failed."""
    found = newest(rows, "name").values()
    lines = []
    for stage in dict.fromkeys(row["stage"] for row in found):
        mine = [row for row in found if row["stage"] == stage]
        counts = {status: sum(row["status"] == status for row in mine) for status in ("ok", "wrong", "failed", "cut")}
        lines.append({"": stage} | counts | {"what": ""})
    empty = dict.fromkeys(("ok", "wrong", "failed", "cut"), "")
    bad = [row for row in found if row["status"] in ("wrong", "failed")]
    return lines + [{"": row["name"]} | empty | {row["status"]: 1, "what": row["text"][:100]} for row in bad]


TABLES: dict[str, tuple[str, Callable[[Sequence[Row]], list[Row]], str]] = {
    "gpu_state": ("gpu-report.csv", state, "Number of jobs of `make gpu`"),
    "gpu_recurrence": ("gpu-recurrence.csv", recurrence, "Times faster than cuDNN: forward, with backward"),
    "gpu_operators": ("gpu-operators.csv", operators, "Forward, with backward"),
    "gpu_memory": ("gpu-memory.csv", memory, "Forward and backward, B = 4, H = 128"),
}
"""By the mark in docs/gpu.md: the CSV, the function that makes the lines, and what they show."""


def text(folder: Path, since: str) -> str:
    """The tables of speed of the rows since a date, for a terminal."""
    parts = []
    for name in ("gpu_recurrence", "gpu_operators"):
        csv, lines, words = TABLES[name]
        rows = [row for row in record.read(folder / csv) if row["date"] >= since] if (folder / csv).exists() else []
        parts += [f"{words}\n{record.table(lines(rows))}"] if rows else []
    return "\n".join(parts)
