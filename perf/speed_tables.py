"""The tables of speed in README and docs: which rows they show, and how. :mod:`perf.tables` writes them.

They show one device and one commit: those of the newest publishable rows, which are steady (see :mod:`perf.harness`)
and of a commit without local changes.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from perf import overhead
from perf.record import OURS
from perf.recurrence import COMPILED, LAST_STEP, MODULES, OPERATOR, PADDED, RECOMPUTED

DIRECTIONS = {"forward": "Forward", "forward+backward": "Forward and backward"}
BOTH = "forward+backward"
README_CELLS = ("lstm", "gru", "tanh", "modrelu")
NOTHING = "*Not measured yet.*"

Record = dict[str, str]


# ---- selection of rows


def publishable(rows: Iterable[Record]) -> list[Record]:
    """The rows of a device that tables may show: steady rows of its newest clean commit. Of several rows with the same
    measurement, the last one."""
    rows = [row for row in rows if row["steady"] == "True" and not row["commit"].endswith(("-dirty", "unknown"))]
    rows = [row for row in rows if row["commit"] == rows[-1]["commit"]]
    sames = ("op", "case", "cell", "shape", "direction", "provider", "dtype")
    return list({tuple(row[name] for name in sames): row for row in rows}.values())


def where(rows: Sequence[Record], **wanted: str) -> list[Record]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def peers(rows: Sequence[Record], dtype: str = "float32") -> list[Record]:
    """Rows of the peer of one layer: torch.nn, or the loop for cells that torch.nn lacks."""
    rows = where(rows, op="recurrence", case="dense", dtype=dtype)
    return [row for row in rows if row["provider"] == ("torch.nn" if row["cell"] in MODULES else "loop")]


def number(rows: Sequence[Record], show: Callable[[Record], str], **wanted: str) -> str:
    """The figure of the one matching row, or an empty string."""
    return next((show(row) for row in where(rows, **wanted)), "")


# ---- formats


def ratio(row: Record) -> str:
    """The speed-up over the row's provider; values below 1 in bold."""
    value = float(row["ratio_50"])
    return f"{value:.2f}" if value >= 1 else f"**{value:.2f}**"


def span(rows: Sequence[Record]) -> str:
    """The lowest and the highest ratio."""
    found = sorted(rows, key=lambda row: float(row["ratio_50"]))
    return " to ".join(dict.fromkeys(ratio(row) for row in (found[0], found[-1])))


def over_baseline(row: Record) -> str:
    return f"{float(row['over_baseline']):.2f}"


def three(x: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{x:.3g}" if x < 100 else f"{x:.0f}"


def megabytes(row: Record) -> str:
    return three(float(row["peak_bytes"]) / 1e6)


def microseconds(row: Record) -> str:
    return three(overhead.microseconds(row))


def against(row: Record) -> str:
    return f"`{row['cell']}` over {'the loop' if row['provider'] == 'loop' else row['provider']}"


def sizes(shape: str) -> str:
    return shape.replace("x", ", ")


def american(words: str) -> str:
    """Converts the spelling of older CSVs to that of the pages."""
    return words.replace("step of the optimiser", "step").replace("optimiser", "optimizer")


def words_of(row: Record) -> list[str]:
    return [f"`{row['cell']}`", sizes(row["shape"]), DIRECTIONS[row["direction"]].lower()]


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table whose first ``words`` columns are text, and all others numbers."""
    rule = "|" + "---|" * words + "---:|" * (len(head) - words)
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])


def of_lines(lines: Sequence[Mapping[str, object]], words: int) -> str:
    return markdown(list(lines[0]), [list(map(str, line.values())) for line in lines], words)


def grid(rows: Sequence[Record], corner: str, label: Callable[[Record], str], show: Callable[[Record], str]) -> str:
    """A table with a line per label and a column per shape, in ascending order."""
    shapes = sorted({row["shape"] for row in rows}, key=lambda shape: math.prod(map(int, shape.split("x"))))
    found = {(label(row), row["shape"]): show(row) for row in rows}
    lines = [[name, *(found.get((name, shape), "") for shape in shapes)] for name in dict.fromkeys(map(label, rows))]
    return markdown([corner, *map(sizes, shapes)], lines)


def grids(rows: Sequence[Record], label: Callable[[Record], str], show: Callable[[Record], str]) -> str:
    """A table for each direction."""
    found = {title: where(rows, direction=direction) for direction, title in DIRECTIONS.items()}
    return "\n\n".join(grid(own, title, label, show) for title, own in found.items() if own)


# ---- tables of speed


class Speed(NamedTuple):
    chosen: Callable[[Sequence[Record]], Sequence[Record]]  # selects the rows to show
    shown: Callable[[Sequence[Record]], str]
    about: str

    def text(self, rows: Sequence[Record]) -> str:
        """The table with its caption."""
        if not (rows := self.chosen(rows)):
            return NOTHING
        return f"{self.shown(rows)}\n\n*{self.about} {facts(rows)}.*"


def facts(rows: Sequence[Record]) -> str:
    """The facts that all rows share."""
    names = ("dtype", "device", "threads", "simd", "torch", "commit")
    ((dtype, device, threads, simd, torch, commit),) = {tuple(row[name] for name in names) for row in rows}
    return f"{dtype.title()}; {device}, {threads} threads, {simd}, PyTorch {torch}, commit {commit}"


def times_faster(rows: Sequence[Record]) -> str:
    return grids(rows, against, ratio)


def of_gemm(rows: Sequence[Record]) -> list[Record]:
    rows = where(rows, op="recurrence", case="dense", dtype="float32")
    return [row for row in rows if row["provider"] in (OURS, "torch.nn")]


def gemm(rows: Sequence[Record]) -> str:
    return grids(rows, lambda row: f"`{row['cell']}`, {row['provider']}", over_baseline)


def strongest(rows: Sequence[Record]) -> list[Record]:
    """For packed input, the row of the faster of torch.nn's two forms, if both were measured."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for row in rows:
        if row["case"] == "packed" and row["provider"] in ("torch.nn", PADDED):
            found.setdefault((row["cell"], row["shape"], row["direction"]), []).append(row)
    return [min(both, key=lambda row: float(row["ratio_50"])) for both in found.values() if len(both) == 2]


def packed(rows: Sequence[Record]) -> str:
    lines = []
    for row in strongest(rows):
        same = where(rows, cell=row["cell"], shape=row["shape"], direction=row["direction"])
        each = (number(same, ratio, provider=provider) for provider in ("torch.nn", PADDED))
        lines.append([*words_of(row), ratio(row), *each])
    head = ["cell", "T, B, N", "direction", "speed-up", "over torch.nn, packed", "over torch.nn, padded"]
    return markdown(head, lines, words=3)


def of_recomputed(rows: Sequence[Record]) -> list[Record]:
    """Rows with recomputed gates, and all rows of the same cells and shapes."""
    rows = where(rows, op="recurrence", case="dense", direction=BOTH, dtype="float32")
    keys = {(row["cell"], row["shape"]) for row in where(rows, provider=RECOMPUTED)}
    return [row for row in rows if (row["cell"], row["shape"]) in keys]


def recomputed(rows: Sequence[Record]) -> str:
    lines = []
    for row in where(rows, provider=RECOMPUTED):
        same = where(rows, cell=row["cell"], shape=row["shape"])
        saved, theirs = (number(same, megabytes, provider=provider) for provider in (OURS, "torch.nn"))
        lines.append([*words_of(row)[:2], f"{float(row['ratio_50']):.2f}", megabytes(row), saved, theirs])
    head = ["cell", "T, B, N", "time / time with saved gates", "MB, recomputed", "MB, saved gates", "MB, torch.nn"]
    return markdown(head, lines, words=2)


def compared(rows: Sequence[Record]) -> str:
    lines = []
    for row in rows:
        cell, shape, direction = words_of(row)
        lines.append([cell, shape, row["case"].removeprefix("dense, "), direction, ratio(row)])
    return markdown(["cell", "T, B, N", "case", "direction", "speed-up"], lines, words=4)


def one_call(rows: Sequence[Record]) -> str:
    lines = []
    for row in where(rows, provider="torch.nn"):
        same = where(rows, cell=row["cell"], shape=row["shape"], direction=row["direction"])
        operator, ours = (number(same, microseconds, provider=provider) for provider in (OPERATOR, OURS))
        lines.append([*words_of(row), operator, ours, microseconds(row), ratio(row)])
    head = ["cell", "T, B, N", "direction", "operator, us", "rnnkern.nn, us", "torch.nn, us", "speed-up"]
    return markdown(head, lines, words=3)


def by_step(rows: Sequence[Record]) -> str:
    lines = []
    for row in (row for row in rows if row["provider"] != OURS):
        ours = number(rows, microseconds, provider=OURS, cell=row["cell"], shape=row["shape"])
        lines.append([f"`{row['cell']}`", row["shape"].split("x")[-1], row["provider"], ours, microseconds(row)])
        lines[-1].append(ratio(row))
    return markdown(["cell", "N", "peer", "rnnkern.nn, us", "peer, us", "speed-up"], lines, words=3)


def of_operators(rows: Sequence[Record]) -> list[Record]:
    """The rows of all operators except the recurrence."""
    return [row for row in rows if row["op"] != "recurrence"]


def operators(rows: Sequence[Record]) -> str:
    lines = []
    for row in (row for row in rows if row["provider"] != OURS):
        same = {name: row[name] for name in ("op", "case", "cell", "shape", "direction")}
        shown = (lambda row: f"{three(float(row['ms_50']))}", lambda row: f"{over_baseline(row)} {row['baseline']}")
        ours = [number(rows, show, provider=OURS, **same) for show in shown]
        name = ", ".join(dict.fromkeys((row["op"], row["cell"], row["case"])))
        words = [american(name), sizes(row["shape"]), american(row["direction"])]
        lines.append([*words, row["provider"], ratio(row), *ours])
    head = ["operator", "sizes", "direction", "peer", "speed-up", "rnnkern, ms", "rnnkern / baseline"]
    return markdown(head, lines, words=4)


def recurrence_of(rows: Sequence[Record], **wanted: str) -> list[Record]:
    return where(rows, **({"op": "recurrence", "dtype": "float32"} | wanted))


# ---- claims


def claims(rows: Sequence[Record]) -> str:
    """A list of the measured speed-ups."""
    steps = [row for row in recurrence_of(rows, case=overhead.STEPS) if row["provider"].endswith("Cell")]
    layers = peers(rows)
    cells = [(cell, where(layers, cell=cell)) for cell in README_CELLS]
    points = [(f"One layer, {against(own[0])}", own) for cell, own in cells if own]
    points += [
        ("A loss on the last step only, over `torch.nn`",
         recurrence_of(rows, case=LAST_STEP, provider="torch.nn")),
        ("Packed input, over the faster of `torch.nn`'s packed and padded forms", strongest(recurrence_of(rows))),
        ("A step at a time (T = B = 1), over `torch.nn`'s cells", steps),
        ("Over `torch.compile` of the loop at T = 50", recurrence_of(rows, provider=COMPILED)),
        ("Relevancy attention over a PyTorch loop with cached keys",
         where(rows, op="relevancy_recurrence", provider="PyTorch, cached keys")),
    ]  # fmt: skip
    lines = []
    for name, own in points:
        parts = {DIRECTIONS.get(d, ""): where(own, direction=d) for d in dict.fromkeys(row["direction"] for row in own)}
        found = ", ".join(f"{title.lower()} {span(some)}".strip() for title, some in parts.items())
        lines += [f"- {name}: {found}"] if found else []
    ratios = [float(row["ratio_50"]) for row in rows if not row["provider"].startswith(OURS)]
    lost = sum(x < 1 for x in ratios)
    lines.append(f"- Slower than the peer in {lost} of {len(ratios)} figures")
    return "\n".join(lines)


LOSSES = "Bold: rnnkern is slower. Blank: not measured, or not steady."
LAYER = f"Speed-up, with the input projection on both sides. {LOSSES}"
TABLES: dict[str, dict[str, Speed]] = {
    "README.md": {
        "claims": Speed(lambda rows: where(rows, dtype="float32"), claims, "Times as fast."),
    },
    "docs/benchmarks.md": {
        "dense": Speed(peers, times_faster, f"Columns are T, B, N. {LAYER}"),
        "bfloat16": Speed(functools.partial(peers, dtype="bfloat16"), times_faster, f"Columns are T, B, N. {LAYER}"),
        "gemm": Speed(of_gemm, gemm, "Time divided by the time of the GEMM reference."),
        "inference": Speed(functools.partial(recurrence_of, case="inference", provider="torch.nn"), compared, LAYER),
        "last": Speed(functools.partial(recurrence_of, case=LAST_STEP, provider="torch.nn"), compared, LAYER),
        "packed": Speed(
            lambda rows: [row for row in recurrence_of(rows, case="packed") if row["provider"] in ("torch.nn", PADDED)],
            packed, f"Speed-up over the faster of the two forms, then over each form. {LOSSES}",
        ),
        "stacks": Speed(
            lambda rows: [row for row in recurrence_of(rows, provider="torch.nn") if row["case"].startswith("dense, ")],
            compared,
            f"Speed-up over the module of torch.nn. {LOSSES}",
        ),
        "recomputed": Speed(of_recomputed, recomputed, "Forward and backward. MB: peak memory of one call."),
        "compiled": Speed(
            functools.partial(recurrence_of, provider=COMPILED), compared,
            f"Speed-up over `torch.compile(fullgraph=True)` of the loop, without compile time. {LOSSES}",
        ),
        "calls": Speed(
            functools.partial(recurrence_of, case=overhead.CALL), one_call,
            f"Speed-up of rnnkern's module over that of torch.nn. {LOSSES}",
        ),
        "steps": Speed(
            functools.partial(recurrence_of, case=overhead.STEPS), by_step,
            f"One step, B = 1, in `torch.inference_mode`. {LOSSES}",
        ),
        "operators": Speed(of_operators, operators, f"Speed-up over the peer. {LOSSES}"),
    },
}  # fmt: skip
"""Speed tables, by page and by name of the mark."""
