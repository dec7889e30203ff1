"""The picture of transfer: how each layer learns, and what it still knows in longer sequences."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perf.figure import COLOURS, STYLE, plt, save
from perf.record import Row


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draws rows of one task and scale: a line for each seed, then the median and the range."""
    models, last = list(dict.fromkeys(row["model"] for row in rows)), rows[-1]
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.2), layout="constrained")
        for model, colour in zip(models, COLOURS * len(models), strict=False):
            own = [row for row in rows if row["model"] == model]
            for seed in dict.fromkeys(row["seed"] for row in own):
                curve = [row for row in own if row["seed"] == seed and row["phase"] == "training"]
                left.plot(*points(curve, "update"), color=colour, linewidth=1.2)
            tests = [row for row in own if row["phase"] == "test"]
            lengths = sorted({int(row["length"]) for row in tests})
            found = [[float(row["measured"]) for row in tests if int(row["length"]) == length] for length in lengths]
            right.plot(lengths, [np.median(x) for x in found], color=colour, marker="o", markersize=4, label=model)
            right.fill_between(lengths, [min(x) for x in found], [max(x) for x in found], color=colour, alpha=0.12,
                               linewidth=0)  # fmt: skip
        left.set(xlabel="update", ylabel=f"accuracy at T = {last['trained_length']}, in training", ylim=(0, 1.02))
        right.set(xlabel="T", ylabel="accuracy at longer T, afterwards", xscale="log", ylim=(0, 1.02))
        for axes in (left, right):
            axes.grid(color="#eeeeee")
            axes.set_axisbelow(True)
        figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", frameon=False)
        figure.suptitle(f"{last['task']}: K = {last['copied']}, {last['hidden']} hidden units", fontsize=12)
        about = f"{last['device']}, PyTorch {last['torch']}; a line per seed; median and range over seeds"
        figure.supxlabel(about, fontsize=8, color="#777777")
        save(figure, path)


def points(rows: Sequence[Row], column: str) -> tuple[list[float], list[float]]:
    return [float(row[column]) for row in rows], [float(row["measured"]) for row in rows]
