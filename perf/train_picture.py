"""The picture of trainings on one task: each model's median over the seeds, and a band from lowest to highest."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perf.figure import STYLE, plt, save
from perf.record import OURS, Row

COLOURS = ("#08519c", "#b63c02", "#2b7a3f", "#7b3294", "#8c6d1f", "#0b7a85", "#a01a58", "#555555")
DASHES = ("-", (0, (4, 1.5)), (0, (6, 1.5, 1, 1.5)))
"""For more kinds than there are colours."""

PANELS = ("train_loss", "measured")
"""Columns of the CSV."""


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draws rows of one task. A peer has the colour of the layer that it is a peer of, wide and pale below it."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    kinds = list(dict.fromkeys(model.split(".", 1)[1] for model in models))
    last, bands = rows[-1], len(kinds) <= len(COLOURS)  # of more nothing would be seen
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(13, max(4.2, 0.3 * len(models))), layout="constrained")
        for axes, column, title in zip(panels, PANELS, ("training loss", last["metric"]), strict=True):
            for model in models:
                library, kind = model.split(".", 1)
                again, colour = divmod(kinds.index(kind), len(COLOURS))
                line = {"color": COLOURS[colour], "linestyle": DASHES[again % len(DASHES)], "label": model}
                line |= {"linewidth": 1.5} if library == OURS else {"linewidth": 6, "alpha": 0.35, "zorder": 1}
                curve(axes, [row for row in rows if row["model"] == model], column, line, bands)
            axes.set(title=title, xlabel="update", xlim=(0, None), ylim=(0, top(rows, column)))
            axes.grid(color="#eeeeee")
            axes.set_axisbelow(True)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
        panels[1].axhline(constant := float(last["constant"]), color="#999999", linestyle=":", zorder=0)
        panels[1].set_ylim(0, max(top(rows, "measured"), 1.05 * constant))
        figure.suptitle(f"{last['task']}: T = {last['length']}, {last['data']}", fontsize=12)
        shown = "median and range" if bands else "median"
        about = f"{last['device']}, PyTorch {last['torch']}; {shown} over seeds; dots: a constant answer"
        figure.supxlabel(about, fontsize=8, color="#777777")
        save(figure, path)


def curve(axes: plt.Axes, rows: Sequence[Row], column: str, line: dict, band: bool) -> None:
    """The median over seeds, and the band."""
    updates = sorted({int(row["update"]) for row in rows})
    values = np.array([[float(row[column]) for row in rows if int(row["update"]) == update] for update in updates])
    axes.plot(updates, np.median(values, 1), solid_capstyle="round", **line)
    if band:
        axes.fill_between(updates, values.min(1), values.max(1), color=line["color"], alpha=0.15, linewidth=0)


def top(rows: Sequence[Row], column: str) -> float:
    """Above all but outliers: a training may explode, for a moment or for ever."""
    values = np.array([x for row in rows if math.isfinite(x := float(row[column]))] or [1.0])
    return 1.05 * values[values <= 2 * np.quantile(values, 0.9)].max() or 1.0
