"""A picture of programs: the time of each as published and with rnnkern, and the part that recurrent layers take."""

from collections.abc import Sequence
from pathlib import Path

from perf.figure import COLOURS, STYLE, plt, save
from perf.programs.tables import Record, pairs

SHOWN = ("as published", "with rnnkern")


def draw(path: Path, rows: Sequence[Record]) -> None:
    """Two bars for each case, as a part of the published time. The recurrent layers' part is dark; where it is not
    known, as within a TorchScript network, the bar is hatched."""
    found = pairs(rows)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(9, 0.55 * len(found) + 0.9), layout="constrained")
        for place, pair in enumerate(found):
            for row, title, colour, offset in zip(pair, SHOWN, reversed(COLOURS[:2]), (-0.19, 0.19), strict=True):
                whole = float(row["seconds"]) / float(pair[0]["seconds"])
                part = whole * float(row["of_recurrent"])
                style = {"height": 0.36, "color": colour}
                axes.barh(place + offset, part, label=None if place else title, **style)
                axes.barh(place + offset, whole - part, left=part, alpha=0.35, hatch=None if part else "//", **style)
            axes.text(float(pair[1]["seconds"]) / float(pair[0]["seconds"]) + 0.01, place + 0.19,
                      f"{float(pair[1]['ratio_50']):.1f} times as fast", va="center", fontsize=8)  # fmt: skip
        axes.set_yticks(range(len(found)), [f"{pair[0]['program']}\n{pair[0]['case']}" for pair in found], fontsize=8)
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.legend(frameon=False, loc="lower right")
        axes.set(xlim=(0, None), xlabel="time, as a part of the published program's; dark: recurrent layers")
        save(figure, path)
