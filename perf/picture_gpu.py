"""Draws a GPU's CSVs: microseconds per step by size, and peak memory by T."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from perf import record
from perf.record import OURS

COLOURS = {OURS: "#b63c02", "torch.nn": "#08519c", "torch.nn dense": "#6a51a3", "torch.nn float16": "#6baed6"}
COLOURS |= {f"{OURS}, cluster": "#fdae6b", f"{OURS}, grid": "#fdae6b"}
LOOP_COLOUR = "#777777"
MARKERS = "osvD"
DIRECTIONS = ("forward", "forward+backward")


def draw_steps(path: Path, dtype: str) -> Path:
    """One panel per cell and direction, with the newest rows of one dtype; one line per provider and batch size."""
    rows = [row for row in record.read(path) if row["dtype"] == dtype and row["case"] in ("dense", "heads")]
    points: dict[tuple[str, ...], float] = {}
    for row in rows:
        steps, batch, size = row["shape"].split("x", 2)
        key = (row["cell"], row["direction"], row["provider"], batch, size)
        points[key] = 1e3 * float(row["ms_50"]) / int(steps)
    cells, _, providers, batches, sizes = (list(dict.fromkeys(column)) for column in zip(*points, strict=True))
    dense = [size for size in sizes if "x" not in size]
    heads = [size for size in sizes if "x" in size]
    shared = {"sharex": True, "sharey": "row", "squeeze": False, "layout": "constrained"}
    figure, fields = plt.subplots(2, len(cells), figsize=(1.5 + 3 * len(cells), 7), **shared)
    for row, direction in enumerate(DIRECTIONS):
        for axes, cell in zip(fields[row], cells, strict=True):
            for provider in providers:
                for batch, marker in zip(sorted(batches, key=int), MARKERS, strict=False):
                    for part in (dense, heads):
                        found = [(size, points.get((cell, direction, provider, batch, size))) for size in part]
                        found = [(sizes.index(size), y) for size, y in found if y is not None]
                        line = {"color": COLOURS.get(provider, LOOP_COLOUR), "marker": marker, "markersize": 4}
                        axes.plot(*zip(*found, strict=True), linewidth=1, **line) if found else None
            logarithmic(axes)
            axes.set_title(f"{cell}, {direction}", fontsize=9)
            axes.set_xticks(range(len(sizes)), sizes, rotation=40, ha="right", fontsize=8)
    for axes in fields[:, 0]:
        axes.set_ylabel("microseconds per step")
    handles = [plt.Line2D([], [], color=COLOURS.get(name, LOOP_COLOUR), label=name) for name in providers]
    handles += [
        plt.Line2D([], [], color="#333333", marker=marker, linestyle="", label=f"B = {batch}")
        for batch, marker in zip(sorted(batches, key=int), MARKERS, strict=False)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    figure.suptitle(f"{about(rows[-1])}: {dtype}, N = I = H or heads x units", fontsize=11)
    return save(figure, path.with_name(f"{path.stem}-{dtype}.png"))


def draw_memory(path: Path) -> Path:
    """Peak bytes of forward and backward by T, from the newest rows."""
    rows = record.read(path)
    points = {(row["provider"], int(row["steps"])): float(row["peak_bytes"]) / 1e6 for row in rows}
    figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
    for provider in dict.fromkeys(provider for provider, _ in points):
        found = sorted((steps, y) for (name, steps), y in points.items() if name == provider)
        colour = COLOURS.get(provider, LOOP_COLOUR)
        axes.plot(*zip(*found, strict=True), marker="o", color=colour, label=provider)
    logarithmic(axes)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set(xlabel="T", ylabel="peak MB, forward and backward")
    axes.legend(frameon=False)
    last = rows[-1]
    size = last["shape"].split("x", 1)[1]
    figure.suptitle(f"{about(last)}: {last['cell']}, {last['dtype']}, B x N = {size}", fontsize=10)
    return save(figure, path.with_suffix(".png"))


def logarithmic(axes: plt.Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(color="#eeeeee")
    axes.set_axisbelow(True)


def about(row: dict[str, str]) -> str:
    return f"{row['op']}, {row['device']}, torch {row['torch']}"


def save(figure: plt.Figure, path: Path) -> Path:
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)
    return path
