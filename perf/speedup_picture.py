"""Speed-ups of one layer over its peers by shape, losses included: docs/images/speedup.png and .svg.

``python -m perf.speedup_picture`` reads the published rows of perf/results, those of the tables.
"""

import math
from pathlib import Path

from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

from perf import record, speed_tables, tables
from perf.figure import COLOURS, STYLE, plt, save

LOSS = "#b2182b"


def draw(path: Path, rows: list[speed_tables.Record]) -> None:
    """A panel for each direction: one line per cell, shapes in order of T * B * N."""
    shapes = sorted({row["shape"] for row in rows}, key=lambda shape: math.prod(map(int, shape.split("x"))))
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", sharey=True)
        for panel, (direction, title) in zip(panels, speed_tables.DIRECTIONS.items(), strict=True):
            panel.axhspan(0.5, 1, color=LOSS, alpha=0.08, linewidth=0)
            panel.axhline(1, color=LOSS, linewidth=1)
            for cell, colour in zip(speed_tables.README_CELLS, COLOURS, strict=False):
                own = {row["shape"]: row for row in speed_tables.where(rows, cell=cell, direction=direction)}
                known = [shape for shape in shapes if shape in own]
                ratios = [float(own[shape]["ratio_50"]) for shape in known]
                peer = speed_tables.against(own[known[0]]).replace("`", "")
                panel.plot([shapes.index(shape) for shape in known], ratios, "o-", color=colour, label=peer)
                lost = [(shapes.index(s), y) for s, y in zip(known, ratios, strict=True) if y < 1]
                panel.plot(
                    [x for x, _ in lost], [y for _, y in lost], "x", color=LOSS, markersize=11, markeredgewidth=2
                )
            panel.set_yscale("log")
            panel.set_ylim(0.8, 11)
            panel.yaxis.set_major_locator(FixedLocator([1, 2, 4, 8]))
            panel.yaxis.set_major_formatter(ScalarFormatter())
            panel.yaxis.set_minor_formatter(NullFormatter())
            panel.set_xticks(
                range(len(shapes)), [speed_tables.sizes(shape) for shape in shapes], rotation=25, ha="right"
            )
            panel.set_xlabel(f"T, B, N\n({title.lower()})")
            panel.grid(axis="y", alpha=0.3)
        panels[0].set_ylabel("speed-up over the peer (times)")
        panels[1].legend(frameon=False, loc="upper right")
        save(figure, path)


def main(root: Path = record.ROOT) -> None:
    rows = speed_tables.peers(tables.newest_device(record.RESULTS))
    draw(root / "docs/images/speedup.png", [row for row in rows if row["cell"] in speed_tables.README_CELLS])


if __name__ == "__main__":
    main()
