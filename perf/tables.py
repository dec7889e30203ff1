"""Writes the tables of README and docs/benchmarks.md, each between its marks, from the newest rows of devices' CSVs.

``python -m perf.tables cpu-amd-epyc-1t cpu-amd-epyc-2t --another cpu-amd-epyc-family-25-model-17-2t``
"""

import argparse
import functools
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from perf import linear_scan, moment_filter, orthogonal, orthogonal_factors, overhead, record
from perf.record import OURS
from perf.recurrence import COMPILED, MODULES, OPERATOR, RECOMPUTED, SHAPES

PAGES = ("README.md", "docs/benchmarks.md")
MARKED = re.compile(r"(<!-- (\w+):begin -->\n).*?(<!-- \2:end -->)", re.DOTALL)
DIRECTIONS = {"forward": "Forward", "forward+backward": "Forward and backward"}
BOTH = "forward+backward"
README_CELLS = ("tanh", "gru", "lstm", "modrelu")
FLOOR_SINCE = "2026-11-21T08:30"
"""Rows before have another floor: all of it by ``torch.mm``."""

Record = dict[str, str]


def newest(rows: Sequence[Record]) -> list[Record]:
    """Of the rows that measure the same, the last one appended."""
    sames = ("case", "cell", "shape", "direction", "provider", "dtype")
    return list({tuple(row[name] for name in sames): row for row in rows}.values())


def where(rows: Sequence[Record], **wanted: str) -> list[Record]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def number(rows: Sequence[Record], show: Callable[[Record], str], **wanted: str) -> str:
    """Of the one row that is wanted, or nothing where it was not measured."""
    return next((show(row) for row in where(rows, **wanted)), "")


# ---- how a figure is shown


def ratio(row: Record) -> str:
    """How many times faster than this row's provider; a loss in bold."""
    value = float(row["ratio_50"])
    return f"{value:.2f}" if value >= 1 else f"**{value:.2f}**"


def megabytes(row: Record) -> str:
    return three(float(row["peak_bytes"]) / 1e6)


def microseconds(row: Record) -> str:
    return three(overhead.microseconds(row))


def three(x: float) -> str:
    """Digits, or all before the point."""
    return f"{x:.3g}" if x < 100 else f"{x:.0f}"


def against(row: Record) -> str:
    return f"`{row['cell']}` over {'the loop' if row['provider'] == 'loop' else row['provider']}"


def sizes(shape: str) -> str:
    return shape.replace("x", ", ")


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table whose first columns are words and all others numbers."""
    rule = "|" + "---|" * words + "---:|" * (len(head) - words)
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])


def by_size(rows: Sequence[Record]) -> list[str]:
    """The shapes, the largest first."""
    return sorted({row["shape"] for row in rows}, key=lambda shape: -math.prod(map(int, shape.split("x"))))


def grid(rows: Sequence[Record], corner: str, label: Callable[[Record], str], show: Callable[[Record], str]) -> str:
    """A line per label, a column per shape."""
    shapes, found = by_size(rows), {(label(row), row["shape"]): show(row) for row in rows}
    lines = [[name, *(found.get((name, shape), "") for shape in shapes)] for name in dict.fromkeys(map(label, rows))]
    return markdown([corner, *map(sizes, shapes)], lines)


def grids(rows: Sequence[Record], label: Callable[[Record], str], show: Callable[[Record], str]) -> str:
    """One for each direction."""
    return "\n\n".join(grid(where(rows, direction=d), title, label, show) for d, title in DIRECTIONS.items())


# ---- the tables


class Table(NamedTuple):
    chosen: Callable[[Sequence[Record]], Sequence[Record]]  # from all rows, those that it shows
    shown: Callable[[Sequence[Record]], str]
    about: str
    dtype: str = "float32"

    def text(self, rows: Sequence[Record]) -> str:
        """With a caption; says so if nothing was measured."""
        if not (rows := self.chosen(where(rows, dtype=self.dtype))):
            return "*Not measured yet.*"
        last, commits = max(rows, key=lambda row: row["date"]), dict.fromkeys(row["commit"] for row in rows)
        facts = f"{last['device']}, {last['threads']} threads, {last['simd']}, PyTorch {last['torch']}"
        return f"{self.shown(rows)}\n\n*{self.about} {self.dtype.title()}; {facts}, commit {', '.join(commits)}.*"


def peers(rows: Sequence[Record], case: str = "dense") -> list[Record]:
    """Those of torch.nn and of the loop."""
    return [row for row in where(rows, case=case) if row["provider"] in ("torch.nn", "loop")]


def of_readme(rows: Sequence[Record]) -> list[Record]:
    """The loop where torch.nn has not the cell."""
    rows = [row for row in where(peers(rows), direction=BOTH) if row["cell"] in README_CELLS]
    return [row for row in rows if (row["provider"] == "loop") == (row["cell"] not in MODULES)]


def speed(rows: Sequence[Record]) -> str:
    """A line per shape, a column per cell."""
    cells = list(dict.fromkeys(map(against, rows)))
    found = {(row["shape"], against(row)): ratio(row) for row in rows}
    lines = [[sizes(shape), *(found.get((shape, cell), "") for cell in cells)] for shape in by_size(rows)]
    return markdown(["T, B, N", *cells], lines)


def times_faster(rows: Sequence[Record]) -> str:
    return grids(rows, against, ratio)


def of_floor(rows: Sequence[Record]) -> list[Record]:
    rows = [row for row in where(rows, case="dense") if row["date"] >= FLOOR_SINCE]
    return [row for row in rows if row["provider"] in (OURS, "torch.nn")]


def floor(rows: Sequence[Record]) -> str:
    return grids(rows, lambda row: f"`{row['cell']}`, {row['provider']}", lambda row: f"{float(row['over_floor']):.2f}")


def of_modules(rows: Sequence[Record]) -> list[Record]:
    """Of torch.nn, stacks or not."""
    return [row for row in where(rows, provider="torch.nn") if row["case"].startswith("dense")]


def of_stacks(rows: Sequence[Record]) -> list[Record]:
    """And of one layer, for the cells that have stacks."""
    rows = of_modules(rows)
    cells = dict.fromkeys(row["cell"] for row in rows if row["case"] != "dense")
    return [row for cell in cells for row in where(rows, cell=cell)]


def stacks(rows: Sequence[Record]) -> str:
    """One layer stands beside two, and beside two directions."""
    kinds = {row["case"]: row["case"].removeprefix("dense, ") for row in rows} | {"dense": "1 layer"}
    return grids(rows, lambda row: f"`{row['cell']}`, {kinds[row['case']]}", ratio)


def of_another(rows: Sequence[Record]) -> list[Record]:
    """Against torch.nn, and of a cell that it has not against the loop."""
    loops = [row for row in where(rows, provider="loop", case="dense") if row["cell"] not in MODULES]
    return of_modules(rows) + where(rows, provider="torch.nn", case="packed") + loops


def means(rows: Sequence[Record]) -> str:
    """Forward and backward alone, each case with its geometric mean, and that without the first shape."""
    kinds = {"dense": "1 layer", "dense, 2 layers": "2 layers", "dense, 2 directions": "2 directions"}
    kinds |= {"packed": "packed"}
    shapes = ["x".join(map(str, shape)) for shape in SHAPES]
    lines = []
    for cell, case in dict.fromkeys((row["cell"], row["case"]) for row in rows):
        found = {row["shape"]: row for row in where(rows, cell=cell, case=case, direction=BOTH)}
        mean = [
            f"{statistics.geometric_mean(float(found[shape]['ratio_50']) for shape in some):.2f}"
            if all(shape in found for shape in some)
            else ""
            for some in (shapes, shapes[1:])
        ]
        figures = [ratio(found[shape]) if shape in found else "" for shape in shapes]
        lines.append([f"`{cell}`, {kinds[case]}" + ("" if cell in MODULES else ", over the loop"), *figures, *mean])
    return markdown(["Forward and backward", *map(sizes, shapes), "mean", "of the last five"], lines)


def of_recomputed(rows: Sequence[Record]) -> list[Record]:
    """And of what stands beside it."""
    rows = where(rows, case="dense", direction=BOTH)
    keys = {(row["cell"], row["shape"]) for row in where(rows, provider=RECOMPUTED)}
    return [row for row in rows if (row["cell"], row["shape"]) in keys]


def recomputed(rows: Sequence[Record]) -> str:
    lines = []
    for row in where(rows, provider=RECOMPUTED):
        same = where(rows, cell=row["cell"], shape=row["shape"])
        kept, theirs = (number(same, megabytes, provider=provider) for provider in (OURS, "torch.nn"))
        time = f"{float(row['ratio_50']):.2f}"
        lines.append([f"`{row['cell']}`", sizes(row["shape"]), time, megabytes(row), kept, theirs])
    head = ["cell", "T, B, N", "time over that with gates kept", "MB, recomputed", "MB, gates kept", "MB, torch.nn"]
    return markdown(head, lines, words=2)


def compiled(rows: Sequence[Record]) -> str:
    lines = []
    for cell, shape in dict.fromkeys((row["cell"], row["shape"]) for row in rows):
        ratios = (number(rows, ratio, cell=cell, shape=shape, direction=direction) for direction in DIRECTIONS)
        lines.append([f"`{cell}`", sizes(shape), *ratios])
    return markdown(["cell", "T, B, N", *(title.lower() for title in DIRECTIONS.values())], lines, words=2)


def calls(rows: Sequence[Record]) -> str:
    lines = []
    for row in where(rows, provider="torch.nn"):
        same = where(rows, cell=row["cell"], shape=row["shape"], direction=row["direction"])
        operator, ours = (number(same, microseconds, provider=provider) for provider in (OPERATOR, OURS))
        words = [f"`{row['cell']}`", row["shape"].split("x")[-1], DIRECTIONS[row["direction"]].lower()]
        lines.append([*words, operator, ours, microseconds(row), ratio(row)])
    head = ["cell", "N", "", "operator, us", "rnnkern.nn, us", "torch.nn, us", "times faster"]
    return markdown(head, lines, words=3)


def steps(rows: Sequence[Record]) -> str:
    lines = []
    for row in where(rows, provider=OURS):
        same = where(rows, cell=row["cell"], shape=row["shape"], direction=row["direction"])
        line = [f"`{row['cell']}`", row["shape"].split("x")[-1], f"`{row['direction']}`", microseconds(row)]
        for provider in ("torch.nn", f"torch.nn {overhead.CELLS[row['cell']].__name__}"):
            line += [number(same, show, provider=provider) for show in (microseconds, ratio)]
        lines.append(line)
    names = ("rnnkern.nn, us", "torch.nn, us", "times faster", "torch.nn's cell, us", "times faster")
    return markdown(["cell", "N", "under", *names], lines, words=3)


def weights(peers: Sequence[str], rows: Sequence[Record]) -> str:
    lines = []
    for row in where(rows, provider=OURS):
        same = where(rows, case=row["case"], shape=row["shape"], direction=row["direction"])
        products = float(row["over_floor"]) * orthogonal.PRODUCTS[row["op"]][row["direction"]]
        ratios = (number(same, ratio, provider=provider) for provider in peers)
        words = [row["shape"].replace("x", " x "), DIRECTIONS[row["direction"]].lower()]
        matrices = float(row["peak_bytes"]) / float(row["matrix_bytes"])
        lines.append([*words, f"{float(row['ms_50']):.3g}", f"{products:.1f}", *ratios, f"{matrices:.1f}"])
    head = ["matrices", "", "ms", "in products", *(f"over {peer}" for peer in peers), "matrices held"]
    return markdown(head, lines, words=2)


def factors(peers: Sequence[str], rows: Sequence[Record]) -> str:
    lines = []
    for row in where(rows, provider=OURS):
        same = where(rows, shape=row["shape"], direction=row["direction"])
        ratios = (number(same, ratio, provider=provider) for provider in peers)
        words = [sizes(row["shape"]), DIRECTIONS[row["direction"]].lower()]
        lines.append([*words, f"{float(row['ms_50']):.3g}", f"{float(row['over_floor']):.1f}", *ratios])
    head = ["N, m or L", "", "ms", "over the floor", *(f"over {peer}" for peer in peers)]
    return markdown(head, lines, words=2)


def scans(peers: Sequence[str], rows: Sequence[Record]) -> str:
    lines = []
    for row in where(rows, provider=OURS):
        same = where(rows, case=row["case"], shape=row["shape"], direction=row["direction"])
        ratios = (number(same, ratio, provider=provider) for provider in peers)
        words = [sizes(row["shape"]), row["case"], DIRECTIONS[row["direction"]].lower()]
        share = f"{100 / float(row['over_floor']):.0f} %"
        lines.append([*words, f"{float(row['ms_50']):.3g}", share, *ratios])
    head = ["T, B, C", "", "", "ms", "of the copy's bandwidth", *(f"over {peer}" for peer in peers)]
    return markdown(head, lines, words=3)


def updates(rows: Sequence[Record]) -> str:
    lines = []
    for row in where(rows, provider=OURS):
        same = where(rows, shape=row["shape"])
        ratios = (number(same, ratio, provider=provider) for provider in orthogonal.PEERS[1:])
        lines.append([sizes(row["shape"]), f"{float(row['ms_50']):.3g}", *ratios, f"{float(row['over_floor']):.2f}"])
    head = ["T, B, N", "ms", *(f"over {peer}" for peer in orthogonal.PEERS[1:]), "time over that of a free weight"]
    return markdown(head, lines)


ORTHOGONAL = ("orthogonal.csv", "orthogonal_step.csv", "orthogonal_factors.csv")
LOSSES = "in bold where rnnkern is slower."
TABLES = {
    "speed": Table(
        of_readme,
        speed,
        "Times faster, forward and backward, N = I = H, input projection included on both sides; medians of "
        f"interleaved pairs; {LOSSES}",
    ),
    "dense": Table(peers, times_faster, f"Times faster; columns are T, B, N; {LOSSES}"),
    "bfloat16": Table(peers, times_faster, f"Times faster; {LOSSES}", "bfloat16"),
    "floor": Table(of_floor, floor, "Time over that of the products that no implementation avoids."),
    "noise": Table(
        lambda rows: [row for row in where(rows, provider="loop") if "zoneout" in row["case"]],
        times_faster,
        f"Times faster than the loop over time, whose draws were made before; {LOSSES}",
    ),
    "packed": Table(functools.partial(peers, case="packed"), times_faster, f"Times faster; {LOSSES}"),
    "stacks": Table(of_stacks, stacks, f"Times faster than torch.nn's module; {LOSSES}"),
    "another": Table(of_another, means, f"Times faster than torch.nn's module; means are geometric; {LOSSES}"),
    "another_bfloat16": Table(
        of_another, means, f"Times faster than torch.nn's module; means are geometric; {LOSSES}", "bfloat16"
    ),
    "recomputed": Table(
        of_recomputed, recomputed, "Forward and backward with `save_gates=False`; peak memory of one call."
    ),
    "compiled": Table(
        functools.partial(where, case="dense", provider=COMPILED),
        compiled,
        f"Times faster than `torch.compile(fullgraph=True)` of the loop, compile time not counted; {LOSSES}",
    ),
    "calls": Table(
        functools.partial(where, case=overhead.CALL),
        calls,
        f"One call with T = B = 1; times faster: rnnkern's module than torch.nn's; {LOSSES}",
    ),
    "steps": Table(
        functools.partial(where, case=overhead.STEPS),
        steps,
        f"One step, B = 1: modules called with T = 1, the state fed back, and torch.nn's cell; {LOSSES}",
    ),
    "orthogonal": Table(
        functools.partial(where, op="skew_exp", case="norm 1"),
        functools.partial(weights, orthogonal.PEERS),
        f"skew_exp, norm 1; time of as many N x N products; times faster than its peers; {LOSSES}",
    ),
    "schur": Table(
        functools.partial(where, op="schur_weight"),
        functools.partial(weights, [orthogonal.FORMULA]),
        f"schur_weight; time of as many N x N products; times faster than plain PyTorch; {LOSSES}",
    ),
    "reflections": Table(
        functools.partial(where, op="householder_product"),
        functools.partial(factors, [orthogonal_factors.LAPACK]),
        f"householder_product; times faster; {LOSSES}",
    ),
    "rotations": Table(
        functools.partial(where, op="givens_product"),
        functools.partial(factors, [orthogonal_factors.FORMULA]),
        f"givens_product of {orthogonal_factors.VECTORS} vectors; times faster than plain PyTorch; {LOSSES}",
    ),
    "scans": Table(
        functools.partial(where, op="linear_scan"),
        functools.partial(scans, linear_scan.PEERS),
        f"linear_scan; times faster than plain PyTorch; {LOSSES}",
    ),
    "filters": Table(
        functools.partial(where, op="moment_filter"),
        functools.partial(scans, moment_filter.PEERS),
        f"moment_filter; times faster; {LOSSES}",
    ),
    "updates": Table(
        functools.partial(where, op="optimiser step"),
        updates,
        f"One step of an optimiser of expRNN, forward, backward and update; times faster; {LOSSES}",
    ),
}
"""By the name in a page's marks."""


def filled(page: str, rows: Sequence[Record], another: Sequence[Record] = ()) -> str:
    def text(match: re.Match) -> str:
        shown = another if match[2].startswith("another") else rows
        return f"{match[1]}{TABLES[match[2]].text(shown)}\n{match[3]}"

    return MARKED.sub(text, page)


def main(argv: Sequence[str], pages: Sequence[Path] = tuple(record.ROOT / page for page in PAGES)) -> None:
    """Of what several devices have, the last one's is the newest.

    Raises:
        FileNotFoundError: a device has none of the CSVs.
    """
    parser = argparse.ArgumentParser(prog="python -m perf.tables")
    parser.add_argument("devices", nargs="+", help="folders of perf/results; the last one's rows are the newest")
    parser.add_argument("--another", help="a folder whose recurrence has a table of its own")
    chosen = parser.parse_args(argv)
    names = ("overhead.csv", *ORTHOGONAL, "linear_scan.csv", "moment_filter.csv")
    rows = [row for device in chosen.devices for row in read(device, ("recurrence.csv", *names))]
    another = newest(read(chosen.another, ["recurrence.csv"])) if chosen.another else []
    rows = newest(rows + (read(chosen.another, names) if chosen.another else []))
    for page in pages:
        page.write_text(filled(page.read_text(), rows, another))


def read(device: str, names: Sequence[str]) -> list[Record]:
    paths = [path for name in names if (path := record.RESULTS / device / name).exists()]
    if not paths:
        raise FileNotFoundError(f"{record.RESULTS / device} has none of {', '.join(names)}")
    return [row for path in paths for row in record.read(path)]


if __name__ == "__main__":
    main(sys.argv[1:])
