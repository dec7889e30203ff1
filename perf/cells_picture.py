"""Speed-up of the cells of rnnkern.cells over their loop: docs/images/cells.png and .svg.

``python -m perf.cells_picture`` reads the newest rows that ``python -m perf.cells --publish`` has left.
"""

import statistics
from pathlib import Path

from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

from perf import record, speed_tables, tables
from perf.figure import COLOURS, STYLE, plt, save


def draw(path: Path, rows: list[speed_tables.Record]) -> None:
    """A line per cell from the least to the largest ratio over the shapes, and their geometric mean."""
    found = {
        cell: [float(row["ratio_50"]) for row in speed_tables.where(rows, cell=cell)]
        for cell in dict.fromkeys(row["cell"] for row in rows)
    }
    cells = sorted(found, key=lambda cell: statistics.geometric_mean(found[cell]))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 0.4 + 0.24 * len(cells)), layout="constrained")
        axes.axvline(1, color="#b2182b", linewidth=1)
        for y, cell in enumerate(cells):
            axes.plot([min(found[cell]), max(found[cell])], [y, y], color=COLOURS[0], alpha=0.35, linewidth=5)
            axes.plot(statistics.geometric_mean(found[cell]), y, "o", color=COLOURS[0], markersize=5)
        axes.set_yticks(range(len(cells)), cells)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator([1, 2, 4, 8, 16, 32]))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("speed-up over the loop, forward and backward (times): mean and range over six shapes")
        axes.grid(axis="x", color="#eeeeee")
        axes.set_axisbelow(True)
        save(figure, path)


def main() -> None:
    rows = tables.newest_of_cells(tables.of_all_devices(record.RESULTS, "cells.csv"))
    chosen = speed_tables.where(rows, case="collection", provider="loop", direction=speed_tables.BOTH)
    draw(record.PICTURES / "cells.png", chosen)


if __name__ == "__main__":
    main()
