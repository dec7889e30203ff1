"""The picture of trainings on one task: a curve per model, a band from the lowest to the highest of its seeds."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from perf.demo_picture import STYLE
from perf.record import OURS, Row

COLOURS = ("#08519c", "#b63c02", "#2b7a3f", "#7b3294", "#8c6d1f", "#0b7a85", "#a01a58", "#555555")


PANELS = ("train_loss", "measured")
"""Columns of the CSV."""


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draws rows of one task. Peers have the colour of the layer that they are peers of, dashed."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    kinds = list(dict.fromkeys(model.split(".", 1)[1] for model in models))
    last = rows[-1]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
        for axes, column, title in zip(panels, PANELS, ("training loss", last["metric"]), strict=True):
            for model in models:
                library, kind = model.split(".", 1)
                line = {"color": COLOURS[kinds.index(kind) % len(COLOURS)], "linewidth": 1.6, "label": model}
                line["linestyle"] = "-" if library == OURS else (0, (4, 3))
                curve(axes, [row for row in rows if row["model"] == model], column, line)
            axes.set(title=title, xlabel="update", xlim=(0, None), ylim=(0, top(rows, column)))
            axes.grid(color="#eeeeee")
            axes.set_axisbelow(True)
        panels[0].legend(frameon=False, fontsize=8)
        panels[1].axhline(float(last["constant"]), color="#999999", linestyle=":", zorder=0)
        figure.suptitle(f"{last['task']}: T = {last['length']}, {last['data']}", fontsize=12)
        about = f"{last['device']}, PyTorch {last['torch']}; bands: lowest to highest seed; dots: a constant answer"
        figure.supxlabel(about, fontsize=8, color="#777777")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, metadata={"Software": None})
        plt.close(figure)


def curve(axes: plt.Axes, rows: Sequence[Row], column: str, line: dict) -> None:
    """The mean over seeds, and the band."""
    updates = sorted({int(row["update"]) for row in rows})
    values = np.array([[float(row[column]) for row in rows if int(row["update"]) == update] for update in updates])
    axes.plot(updates, values.mean(1), **line)
    axes.fill_between(updates, values.min(1), values.max(1), color=line["color"], alpha=0.15, linewidth=0)


def top(rows: Sequence[Row], column: str) -> float:
    """Above all but outliers: a training may explode, for a moment or for ever."""
    values = np.array([x for row in rows if math.isfinite(x := float(row[column]))] or [1.0])
    return 1.05 * values[values <= 3 * np.quantile(values, 0.9)].max() or 1.0
