"""Plots of training on one task: the median over seeds of each model, with a band from the lowest to the highest.

``python -m perf.train_picture`` redraws the plots in docs/images from all published CSVs.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perf import record
from perf.figure import COLOURS, MOST_LINES, STYLE, plt, save
from perf.record import OURS, Row

PANELS = ("train_loss", "measured")
"""Columns of the CSV, one per panel."""


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draws the rows of one task, with a row of panels for each group of models. A peer has the colour of our layer, in
    a wide, pale line below it."""
    last, groups = rows[-1], grouped(list(dict.fromkeys(row["model"] for row in rows)))
    with plt.rc_context(STYLE):
        size = (13, 0.6 + 3.3 * len(groups))
        figure, panels = plt.subplots(len(groups), 2, figsize=size, layout="constrained", squeeze=False, sharex=True)
        for models, line_of_panels in zip(groups, panels, strict=True):
            kinds = list(dict.fromkeys(map(kind_of, models)))
            for axes, column, label in zip(line_of_panels, PANELS, ("training loss", last["metric"]), strict=True):
                for model in models:
                    line = {"color": COLOURS[kinds.index(kind_of(model))], "label": model}
                    ours = model.startswith(f"{OURS}.")
                    line |= {"linewidth": 1.5} if ours else {"linewidth": 6, "alpha": 0.35, "zorder": 1}
                    curve(axes, [row for row in rows if row["model"] == model], column, line)
                low, scale = axis(rows, column)
                axes.set(ylabel=label, xlim=(0, None), yscale=scale, ylim=(low, top(rows, column)))
                axes.grid(color="#eeeeee")
                axes.set_axisbelow(True)
            right = line_of_panels[1]
            right.axhline(constant := float(last["constant"]), color="#999999", linestyle=":", zorder=0)
            right.set_ylim(top=max(top(rows, "measured"), 1.05 * constant))
            right.legend(*right.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        for axes in panels[-1]:
            axes.set_xlabel("update")
        figure.suptitle(f"{last['task']}: T = {last['length']}, {last['data']}", fontsize=12)
        devices = ", ".join(dict.fromkeys(row["device"] for row in rows))
        about = f"{devices}, PyTorch {last['torch']}; median and range over seeds; dots: a constant answer"
        figure.supxlabel(about, fontsize=8, color="#777777")
        save(figure, path)


def kind_of(model: str) -> str:
    return model.split(".", 1)[1]


def grouped(models: Sequence[str]) -> list[list[str]]:
    """Groups of at most ``MOST_LINES`` models, which keep a layer and its peers together."""
    groups: list[list[str]] = [[]]
    for kind in dict.fromkeys(map(kind_of, models)):
        own = [model for model in models if kind_of(model) == kind]
        if len(groups[-1]) + len(own) > MOST_LINES:
            groups.append([])
        groups[-1] += own
    return groups


def curve(axes: plt.Axes, rows: Sequence[Row], column: str, line: dict) -> None:
    """Draws the median over seeds and the band."""
    updates = sorted({int(row["update"]) for row in rows})
    values = np.array([[float(row[column]) for row in rows if int(row["update"]) == update] for update in updates])
    axes.plot(updates, np.median(values, 1), solid_capstyle="round", **line)
    axes.fill_between(updates, values.min(1), values.max(1), color=line["color"], alpha=0.15, linewidth=0)


def top(rows: Sequence[Row], column: str) -> float:
    """The upper limit of an axis, without outliers: training may diverge, temporarily or for good."""
    values = np.array([x for row in rows if math.isfinite(x := float(row[column]))] or [1.0])
    return 1.05 * values[values <= 2 * np.quantile(values, 0.9)].max() or 1.0


def axis(rows: Sequence[Row], column: str) -> tuple[float, str]:
    """The lower limit of an axis and its scale, which is logarithmic if the values span two decades."""
    values = np.array([x for row in rows if (x := float(row[column])) > 0 and math.isfinite(x)] or [1.0])
    low = 0.8 * np.quantile(values, 0.02)
    return (low, "log") if top(rows, column) >= 100 * low else (0, "linear")


def main() -> None:
    from perf.tables import of_all_devices  # imports perf.train, which imports this module
    from perf.train import newest

    for name in sorted({path.name for path in record.RESULTS.glob("*/train-*.csv")}):
        draw(record.PICTURES / f"{Path(name).stem}.png", newest(of_all_devices(record.RESULTS, name)))


if __name__ == "__main__":
    main()
