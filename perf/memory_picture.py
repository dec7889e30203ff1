"""The three panels of the thesis (Kerg 2022, ch. 4, figure 2): gradients over t, memory over T, gradients over memory.

``python -m perf.memory_picture`` redraws docs/images/memory.png and .svg from the published results of perf.memory and
perf.gradient.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from perf import memory, record
from perf.figure import LAYER_COLOURS, STYLE, numbered, plt, save
from perf.record import Row
from perf.tables import of_all_devices

LINES = {"LSTM": ["fused"], "RelRNN": ["fused", "loop"], "RelLSTM": ["fused"], "MemRNN": ["fused", "loop"]}
"""Layers and implementations whose memory is shown."""
GRADIENTS = {"LSTM": "LSTM", "RelRNN 10/10": "RelRNN", "MemRNN": "MemRNN"}
"""Layers of perf.gradient, with the names of perf.memory."""


def draw(path: Path, memories: Sequence[Row], gradients: Sequence[Row]) -> None:
    with plt.rc_context(STYLE):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
        ticks = []
        for layer, forms in LINES.items():
            colour = LAYER_COLOURS[layer]
            for form in forms:
                own = [row for row in memories if (row["layer"], row["form"]) == (layer, form)]
                steps, saved = columns(own, "T", "saved_bytes")
                style, label = ("-", layer) if form == "fused" else (":", f"{layer}, Python loop")
                middle.plot(steps, [x / 1e6 for x in saved], style, color=colour, label=label)
            for name in (name for name, of in GRADIENTS.items() if of == layer):
                own = [row for row in gradients if row["layer"] == name]
                lengths = sorted({int(row["length"]) for row in own})
                longest = [row for row in own if lengths and int(row["length"]) == lengths[-1]]
                left.plot(*columns(longest, "t", "norm"), color=colour, linewidth=1.2)
                points = [(kept(memories, layer, length), mean_log(own, length)) for length in lengths]
                right.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4) if points else None
                ticks += [x for x, _ in points]
        left.set(ylabel="gradient norm of the loss with respect to $h_t$", xlabel="step t", yscale="log")
        middle.set(ylabel="kept for the backward pass, MB", xlabel="T", xscale="log", yscale="log")
        right.set(ylabel="mean logarithm of the gradient norms", xlabel="kept for the backward pass, MB", xscale="log")
        if ticks:
            numbered(right.xaxis, [x for x in (0.2, 0.5, 1, 2, 5, 10) if min(ticks) <= x <= max(ticks)])
        for axes in (left, middle, right):
            axes.grid(color="#eeeeee")
            axes.set_axisbelow(True)
        figure.legend(*middle.get_legend_handles_labels(), loc="outside right upper", frameon=False)
        lengths = ", ".join(sorted({row["length"] for row in gradients}, key=int))
        about = f"left and right: denoise, T = {lengths}; {memories[-1]['device']}, H = {memories[-1]['hidden']}"
        figure.supxlabel(about, fontsize=8, color="#777777")
        save(figure, path)


def columns(rows: Sequence[Row], x: str, y: str) -> tuple[list[float], list[float]]:
    return [float(row[x]) for row in rows], [float(row[y]) for row in rows]


def kept(memories: Sequence[Row], layer: str, length: int) -> float:
    """MB at a length, extrapolated from the last measurement of the fused layer."""
    own = [row for row in memories if (row["layer"], row["form"]) == (layer, "fused")]
    return float(own[-1]["saved_bytes"]) / 1e6 / int(own[-1]["T"]) * length


def mean_log(gradients: Sequence[Row], length: int) -> float:
    norms = [float(row["norm"]) for row in gradients if int(row["length"]) == length]
    return statistics.fmean(math.log(max(norm, 1e-45)) for norm in norms)


def main() -> None:
    memories = memory.newest(of_all_devices(record.RESULTS, "memory.csv"))
    gradients = of_all_devices(record.RESULTS, "gradient.csv")
    dates = {row["layer"]: row["date"] for row in gradients}
    gradients = [row for row in gradients if row["date"] == dates[row["layer"]]]
    draw(record.PICTURES / "memory.png", memories, gradients)


if __name__ == "__main__":
    main()
