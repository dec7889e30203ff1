"""Plots of transfer: how each layer learns, and its accuracy on longer sequences.

``python -m perf.transfer_picture`` redraws the plots in docs/images from all published CSVs.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perf import record
from perf.figure import COLOURS, LAYER_COLOURS, MOST_LINES, STYLE, numbered, plt, save
from perf.record import Row

OTHERS = COLOURS[:5:-1]
"""Colours of variants."""


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draws the rows of one task and scale: the median and range over seeds of each layer, in training and in tests. A
    layer with variants also has a row of panels with these."""
    groups, last = grouped(list(dict.fromkeys(row["model"] for row in rows))), rows[-1]
    with plt.rc_context(STYLE):
        size = (13, 0.8 + 3.4 * len(groups))
        figure, panels = plt.subplots(len(groups), 2, figsize=size, layout="constrained", squeeze=False, sharex="col")
        for models, (left, right) in zip(groups, panels, strict=True):
            for model, colour in zip(models, colours(models), strict=True):
                own = [row for row in rows if row["model"] == model]
                line = {"color": colour, "label": model}
                curve(left, learning(own), line)
                curve(right, tests(own), line | {"marker": "o", "markersize": 4})
            left.set(ylabel=f"accuracy in training, T = {last['trained_length']}", ylim=(0, 1.02))
            right.set(ylabel="accuracy in the test", xscale="log", ylim=(0, 1.02))
            numbered(right.xaxis, [int(row["length"]) for row in rows if row["phase"] == "test"])
            right.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
            for axes in (left, right):
                axes.grid(color="#eeeeee")
                axes.set_axisbelow(True)
        panels[-1, 0].set_xlabel("update")
        panels[-1, 1].set_xlabel("T in the test")
        figure.suptitle(f"{last['task']}: K = {last['copied']}, {last['hidden']} hidden units", fontsize=12)
        about = f"{last['device']}, PyTorch {last['torch']}; median and range over seeds; a training stops at "
        figure.supxlabel(f"{about}{last['enough']}", fontsize=8, color="#777777")
        save(figure, path)


def grouped(models: Sequence[str]) -> list[list[str]]:
    """All layers except variants, then each layer that has variants with these."""
    plain = [model for model in models if "-" not in model or model.partition("-")[0] not in models]
    groups = [plain[k : k + MOST_LINES] for k in range(0, len(plain), MOST_LINES)]
    for layer in plain:
        if variants := [model for model in models if model.startswith(f"{layer}-")]:
            groups.append([layer, *variants])
    return groups


def colours(models: Sequence[str]) -> list[str]:
    rest = itertools.cycle(OTHERS)
    return [LAYER_COLOURS.get(model.partition(".")[2]) or next(rest) for model in models]


def learning(rows: Sequence[Row]) -> dict[int, list[float]]:
    """The accuracies of all seeds, by update. A seed that has stopped keeps its last accuracy."""
    seeds: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["phase"] == "training":
            seeds.setdefault(row["seed"], {})[int(row["update"])] = float(row["measured"])
    updates = sorted({update for found in seeds.values() for update in found})
    return {now: [found[max(u for u in found if u <= now)] for found in seeds.values()] for now in updates}


def tests(rows: Sequence[Row]) -> dict[int, list[float]]:
    """The accuracies of all seeds, by length."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row["phase"] == "test":
            found.setdefault(int(row["length"]), []).append(float(row["measured"]))
    return dict(sorted(found.items()))


def curve(axes: plt.Axes, values: dict[int, list[float]], line: dict) -> None:
    axes.plot(list(values), [np.median(x) for x in values.values()], **line)
    lowest, highest = ([f(x) for x in values.values()] for f in (min, max))
    axes.fill_between(list(values), lowest, highest, color=line["color"], alpha=0.15, linewidth=0)


def main() -> None:
    from perf.tables import of_all_devices  # imports perf.transfer, which imports this module
    from perf.transfer import newest

    for task in ("copy", "denoise"):
        rows = newest(of_all_devices(record.RESULTS, f"transfer-{task}.csv"), task, "small")
        draw(record.PICTURES / f"transfer-{task}-small.png", rows)


if __name__ == "__main__":
    main()
