"""The tables of docs/relational.md, from the CSVs of ``perf.relational`` and ``perf.similarity``: their lines, and what
their captions say."""

from collections.abc import Sequence
from typing import NamedTuple

from perf import relational
from perf.record import OURS

Record = dict[str, str]
Line = dict[str, str]

TASKS = (
    "Accuracy, %, of each seed on {samples} new samples. Published: Kerg 2022, mean of 10 seeds, or its words. "
    "Seconds: of the processor, for one training."
)
SPEEDS = (
    "Times as fast as each peer; bold: rnnkern is slower; ~: not steady. Over the floor: rnnkern's time. Quartiles are "
    "in the CSV."
)


class Table(NamedTuple):
    lines: list[Line]
    words: int  # columns that are text
    caption: str


def of_groups(rows: Sequence[Record], groups: Sequence[str]) -> Table:
    """A line for each run of these groups."""
    lines = []
    for line in relational.summary(relational.newest(rows)):
        if line["group"] in groups:
            shown = ("run", "model", "accuracy", "goal", "published", "seconds")
            test = f", {line['test']}" if line["group"] == "games" else ""
            lines.append({name: str(line[name]) for name in shown} | {"run": line["run"] + test})
    return Table(lines, 2, TASKS.format(samples=relational.SAMPLES))


def of_speeds(rows: Sequence[Record]) -> Table:
    """A line for each case, direction and number of threads, with its newest ratios."""
    of_case: dict[tuple[str, ...], dict[str, Record]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("op", "case", "shape", "direction", "threads"))
        of_case.setdefault(key, {})[row["provider"]] = row
    peers = dict.fromkeys(provider for found in of_case.values() for provider in found if provider != OURS)
    lines = []
    for (op, _, shape, direction, threads), found in of_case.items():
        sizes = {"operator or layer": f"`{op}`", "sizes": shape.replace("x", ", "), "direction": direction}
        over = f"{float(found[OURS]['over_baseline']):.2f} {found[OURS]['baseline']}"
        ratios = {peer: ratio(found[peer]) if peer in found else "" for peer in peers}
        lines.append(sizes | {"threads": threads} | ratios | {"over": over})
    return Table(lines, 3, SPEEDS)


def ratio(row: Record) -> str:
    value = float(row["ratio_50"])
    shown = f"{value:.2f}" if value >= 1 else f"**{value:.2f}**"
    return shown if row["steady"] == "True" else f"~{shown}"
