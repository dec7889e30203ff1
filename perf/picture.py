"""Draws a family's CSV: speed-up over the peer and time relative to the baseline, per cell and shape."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import TwoSlopeNorm

from perf import record
from perf.harness import OURS

DIRECTIONS = ("forward", "forward+backward")


def draw(path: Path, op: str, case: str, dtype: str) -> Path:
    """Draws the newest row of every cell, shape and provider. Returns the path of the picture, beside the CSV."""
    rows = [row for row in record.read(path) if (row["op"], row["case"], row["dtype"]) == (op, case, dtype)]
    newest = {(row["cell"], row["shape"], row["direction"], row["provider"]): row for row in rows}
    cells, shapes = (list(dict.fromkeys(row[name] for row in rows)) for name in ("cell", "shape"))
    peers = {cell: peer_of(cell, newest) for cell in cells}

    def grid(direction: str, column: str, provider: dict[str, str]) -> np.ndarray:
        found = [[newest.get((cell, shape, direction, provider[cell])) for shape in shapes] for cell in cells]
        return np.array([[float(row[column]) if row else np.nan for row in line] for line in found])

    size = (3.4 + 1.5 * len(shapes), 2.4 + 0.8 * len(cells))
    figure, axes = plt.subplots(2, 2, figsize=size, sharex=True, sharey="row", layout="constrained")
    for column, direction in enumerate(DIRECTIONS):
        heat(axes[0, column], grid(direction, "ratio_50", peers), "RdYlGn")
        heat(axes[1, column], grid(direction, "over_baseline", dict.fromkeys(cells, OURS)), "RdYlGn_r")
        axes[0, column].set_title(f"{direction}: times faster", fontsize=10)
        axes[1, column].set_title(f"{direction}: time over the GEMM reference", fontsize=10)
        axes[1, column].set_xticks(range(len(shapes)), shapes, rotation=30, ha="right", fontsize=8)
        axes[1, column].set_xlabel("T x B x N", fontsize=8)
    axes[0, 0].set_yticks(range(len(cells)), [f"{cell}  vs  {peers[cell]}" for cell in cells], fontsize=8)
    axes[1, 0].set_yticks(range(len(cells)), cells, fontsize=8)
    last = rows[-1]
    about = f"{last['op']}, {case}, {dtype}: {last['device']}, {last['threads']} threads, torch {last['torch']}"
    figure.suptitle(about, fontsize=11)
    words = [op, *case.replace(",", "").split(), *([] if dtype == "float32" else [dtype])]
    picture = path.with_name(f"{'-'.join(words)}.png")
    figure.savefig(picture, dpi=120, metadata={"Software": None})
    plt.close(figure)
    return picture


def peer_of(cell: str, newest: dict) -> str:
    """torch.nn if it has the cell, otherwise the loop."""
    providers = {key[-1] for key in newest if key[0] == cell}
    return "torch.nn" if "torch.nn" in providers else "loop"


def heat(axes: plt.Axes, values: np.ndarray, colours: str) -> None:
    """A heat map with numbers; its colour scale is logarithmic and symmetric around 1."""
    axes.imshow(np.log2(values), cmap=colours, norm=TwoSlopeNorm(0, -2.5, 2.5), aspect="auto", alpha=0.75)
    for (y, x), value in np.ndenumerate(values):
        if not np.isnan(value):
            axes.text(x, y, f"{value:.2f}" if value < 10 else f"{value:.0f}", ha="center", va="center", fontsize=8)
    for edge in np.arange(values.shape[0] - 1) + 0.5:
        axes.axhline(edge, color="white", linewidth=2)
    for edge in np.arange(values.shape[1] - 1) + 0.5:
        axes.axvline(edge, color="white", linewidth=2)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
