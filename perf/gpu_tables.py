"""Prints short tables of a GPU's CSV: microseconds per step, and how many times faster than cuDNN.

``python -m perf.gpu_tables perf/results/nvidia-h200``
"""

import functools
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perf import record
from perf.record import OURS, Row, significant

SHOWN_DTYPE, SHOWN_BATCH = "bfloat16", 16
DIRECTIONS = {"forward": "fwd", "forward+backward": "both"}
PEERS = {"torch.nn": "nn", "torch.nn float16": "f16", "torch.nn dense": "dense"}
"""torch.nn with the same dtype, with cuDNN's best dtype, and with a dense R instead of heads; with short names for
columns."""

Key = tuple[str, str, str, str]
"""case, cell, shape, dtype."""


class Figures:
    """The newest row of each case, direction and provider."""

    def __init__(self, rows: Sequence[dict[str, str]]) -> None:
        self.rows = {
            (*(row[name] for name in ("case", "cell", "shape", "dtype")), row["direction"], row["provider"]): row
            for row in rows
        }
        self.keys: list[Key] = list(dict.fromkeys(key[:4] for key in self.rows))

    def number(self, key: Key, direction: str, provider: str, column: str) -> float | str:
        """A value of the CSV; empty if it was not measured."""
        row = self.rows.get((*key, direction, provider))
        return significant(float(row[column])) if row else ""

    def step(self, key: Key, direction: str) -> float | str:
        """Microseconds per step; empty if not measured."""
        ms = self.number(key, direction, OURS, "ms_50")
        return ms if ms == "" else significant(1e3 * ms / int(key[2].split("x")[0]))

    def peers(self, key: Key) -> list[str]:
        return list(dict.fromkeys(name for *rest, _, name in self.rows if tuple(rest) == key and not own(name)))

    def rivals(self, key: Key) -> list[str]:
        """Kernels of rnnkern that were measured but not chosen."""
        return list(dict.fromkeys(name for *rest, _, name in self.rows if tuple(rest) == key and own(name) > 1))


def own(provider: str) -> int:
    """Number of parts, separated by commas, in the name of a provider of rnnkern: 1, or 2 with a variant. 0 for
    peers."""
    return len(provider.split(", ")) if provider.split(", ")[0] == OURS else 0


def batch(key: Key) -> int:
    return int(key[2].split("x")[1])


def steps(figures: Figures) -> Iterator[Row]:
    """A row per cell and size, for one dtype and batch size."""
    plain = [key for key in figures.keys if key[0] in ("dense", "heads")]
    for key in plain:
        if key[3] != SHOWN_DTYPE or batch(key) != SHOWN_BATCH:
            continue
        line: Row = {"cell": key[1], "T x B x N": key[2]}
        for direction, short in DIRECTIONS.items():
            line[f"{short} us/step"] = figures.step(key, direction)
            for peer, name in PEERS.items():
                line[f"{short} /{name}"] = figures.number(key, direction, peer, "ratio_50")
            line[f"{short} over GEMM"] = figures.number(key, direction, OURS, "over_baseline")
        for provider in (OURS, "torch.nn"):
            peak = figures.number(key, "forward+backward", provider, "peak_bytes")
            line["MB" if provider == OURS else "nn MB"] = peak if peak == "" else significant(peak / 1e6)
        yield line


def means(figures: Figures) -> Iterator[Row]:
    """Geometric means over sizes, a row per dtype, batch size and direction."""
    plain = [key for key in figures.keys if key[0] in ("dense", "heads")]
    cells = list(dict.fromkeys(key[1] for key in plain if figures.peers(key)))
    for dtype, rows in dict.fromkeys((key[3], batch(key)) for key in plain):
        for direction, short in DIRECTIONS.items():
            line: Row = {"dtype": dtype, "B": rows, "": short}
            for cell in cells:
                mine = [key for key in plain if key[1] == cell and key[3] == dtype and batch(key) == rows]
                for peer, name in PEERS.items():
                    ratios = [x for key in mine if (x := figures.number(key, direction, peer, "ratio_50")) != ""]
                    line[f"{cell} /{name}"] = significant(statistics.geometric_mean(ratios)) if ratios else ""
            yield line


def rivals(figures: Figures) -> Iterator[Row]:
    """For a dense R, the chosen kernel against the other one that could run."""
    for key in figures.keys:
        for rival in figures.rivals(key):
            line: Row = dict(zip(("cell", "T x B x N", "dtype"), key[1:], strict=True))
            for direction, short in DIRECTIONS.items():
                line[f"{short} us/step"] = figures.step(key, direction)
                line[f"{short} /{rival.removeprefix(OURS + ', ')}"] = figures.number(key, direction, rival, "ratio_50")
            yield line


def others(figures: Figures) -> Iterator[Row]:
    """All other cases against each peer: forward, and forward and backward."""
    for key in figures.keys:
        if key[0] in ("dense", "heads"):
            continue
        ratios = [
            " ".join([peer, *(str(figures.number(key, direction, peer, "ratio_50")) for direction in DIRECTIONS)])
            for peer in figures.peers(key)
        ]
        yield dict(zip(("case", "cell", "T x B x N", "dtype"), key, strict=True)) | {
            "fwd us/step": figures.step(key, "forward"),
            "both us/step": figures.step(key, "forward+backward"),
            "times faster than, fwd both": "; ".join(ratios) or "-",
        }


def calls(figures: Figures, names: Mapping[str, int]) -> Iterator[Row]:
    """A row per function and size, against each peer and each variant of rnnkern. ``names`` maps the names of the first
    columns to parts of the key."""
    peers = dict.fromkeys(peer for key in figures.keys for peer in figures.peers(key) + figures.rivals(key))
    shown = {peer: peer.rpartition(".")[2].removeprefix(f"{OURS}, ") for peer in peers}
    for key in figures.keys:
        line: Row = {name: key[part] for name, part in names.items()}
        for direction, short in DIRECTIONS.items():
            line[f"{short} ms"] = figures.number(key, direction, OURS, "ms_50")
            line[f"{short} over GEMM"] = figures.number(key, direction, OURS, "over_baseline")
            for peer, name in shown.items():
                line[f"{short} /{name}"] = figures.number(key, direction, peer, "ratio_50")
        yield line


TABLES = {
    "recurrence.csv": (
        (f"{SHOWN_DTYPE}, B = {SHOWN_BATCH}; /x: times faster than x", steps),
        ("times faster, geometric mean over sizes", means),
        ("the kernel chosen; /x: times faster than x, which could serve too", rivals),
        ("other cases", others),
    ),
    "relevancy.csv": (("relevancy attention", others),),
    "orthogonal.csv": (
        ("orthogonal weights; /x: times faster than x", functools.partial(calls, names={"": 1, "matrices": 2})),
    ),
} | {
    f"{name}.csv": ((f"{name}; /x: times faster than x", functools.partial(calls, names={"": 0, sizes: 2})),)
    for name, sizes in (
        ("linear_scan", "T x B x C"),
        ("moment_filter", "T x B x C"),
        ("givens_recurrence", "T x B x N x L"),
        ("gather_attention", "B x T x kappa x n"),
    )
}


def text(folder: Path, since: str = "") -> str:
    """The tables of rows measured since a date, which has the format of the CSV's column."""
    return "\n\n".join(text_of(folder / name, since) for name in TABLES)


def text_of(path: Path, since: str) -> str:
    rows = [row for row in record.read(path) if row["date"] >= since] if path.exists() else []
    if not rows:
        return f"{path.name}: nothing was measured"
    figures, facts = Figures(rows), rows[-1]
    names = ("device", "torch", "cuda", "cudnn", "commit", "copy_gb_s")
    parts = [", ".join(f"{name} {facts[name]}" for name in names if name in facts)]
    for title, lines_of in TABLES[path.name]:
        if lines := list(lines_of(figures)):
            parts.append(f"{title}\n{record.table(without_empty(lines))}")
    return "\n\n".join(parts)


def without_empty(lines: Sequence[Row]) -> list[Row]:
    """Removes columns without measurements."""
    kept = [name for name in lines[0] if any(line[name] != "" for line in lines)]
    return [{name: line[name] for name in kept} for line in lines]


if __name__ == "__main__":
    print(text(Path(sys.argv[1])))
