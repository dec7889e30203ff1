"""The thesis' three panels (Kerg 2022, ch. 4, figure 2): gradients against t, memory against T, and the one against the
other.

``python -m perf.memory_picture perf/results/cpu-amd-epyc-1t`` reads what perf.memory and perf.gradient have left there.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from perf import memory, record
from perf.figure import COLOURS, STYLE, plt, save
from perf.record import Row

LAYERS = ("LSTM", "RelRNN", "RelLSTM", "MemRNN")
GRADIENTS = {"LSTM": "LSTM", "RelRNN 10/10": "RelRNN", "MemRNN": "MemRNN"}
"""Of perf.gradient's layers."""


def draw(path: Path, memories: Sequence[Row], gradients: Sequence[Row]) -> None:
    with plt.rc_context(STYLE):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
        for layer, colour in zip(LAYERS, COLOURS, strict=False):
            for form in dict.fromkeys(row["form"] for row in memories if row["layer"] == layer):
                own = [row for row in memories if (row["layer"], row["form"]) == (layer, form)]
                if form in ("fused", "loop"):
                    style = "-" if form == "fused" else ":"
                    middle.plot(*columns(own, "T", "saved_bytes"), style, color=colour, label=f"{layer}, {form}")
            for name in (name for name, of in GRADIENTS.items() if of == layer):
                own = [row for row in gradients if row["layer"] == name]
                lengths = sorted({int(row["length"]) for row in own})
                longest = [row for row in own if lengths and int(row["length"]) == lengths[-1]]
                left.plot(*columns(longest, "t", "norm"), color=colour, linewidth=1.2)
                points = [(kept(memories, layer, length), mean_log(own, length)) for length in lengths]
                right.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4) if points else None
        left.set(ylabel="norm of the loss' gradient to h at t", xlabel="t", yscale="log")
        middle.set(ylabel="kept for the backward, bytes", xlabel="T", xscale="log", yscale="log")
        right.set(ylabel="mean log of the norms", xlabel="kept for the backward, MB", xscale="log")
        right.xaxis.set_major_locator(LogLocator(subs=(1, 4)))
        right.xaxis.set_major_formatter(ScalarFormatter())
        right.xaxis.set_minor_formatter(NullFormatter())
        for axes in (left, middle, right):
            axes.grid(color="#eeeeee")
            axes.set_axisbelow(True)
        figure.legend(*middle.get_legend_handles_labels(), loc="outside right upper", frameon=False)
        lengths = ", ".join(sorted({row["length"] for row in gradients}, key=int))
        about = (
            f"left and right: denoise, right at T = {lengths}; {memories[-1]['device']}, n = {memories[-1]['hidden']}"
        )
        figure.supxlabel(about, fontsize=8, color="#777777")
        save(figure, path)


def columns(rows: Sequence[Row], x: str, y: str) -> tuple[list[float], list[float]]:
    return [float(row[x]) for row in rows], [float(row[y]) for row in rows]


def kept(memories: Sequence[Row], layer: str, length: int) -> float:
    """MB at a length, by the fused layer's last slope."""
    own = [row for row in memories if (row["layer"], row["form"]) == (layer, "fused")]
    return float(own[-1]["saved_bytes"]) / 1e6 / int(own[-1]["T"]) * length


def mean_log(gradients: Sequence[Row], length: int) -> float:
    norms = [float(row["norm"]) for row in gradients if int(row["length"]) == length]
    return statistics.fmean(math.log(max(norm, 1e-45)) for norm in norms)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.memory_picture", description=__doc__)
    parser.add_argument("folder", type=Path, help="that has memory.csv and gradient.csv")
    record.add_output_arguments(parser)
    chosen = parser.parse_args(argv)
    memories = memory.newest(record.read(chosen.folder / "memory.csv"))
    gradients = record.read(chosen.folder / "gradient.csv")
    dates = {row["layer"]: row["date"] for row in gradients}
    gradients = [row for row in gradients if row["date"] == dates[row["layer"]]]
    draw(record.output(chosen, torch.device("cpu")).pictures / "memory.png", memories, gradients)


if __name__ == "__main__":
    main(sys.argv[1:])
