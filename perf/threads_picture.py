"""How layers scale over threads: docs/images/threads.png and .svg, and the CSV that they are drawn from.

``python -m perf.threads_picture`` measures every number of threads that the processor has, in turns, in about a minute.
"""

import math
import os
import statistics

import torch
from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

from perf import harness, record
from perf.figure import COLOURS, STYLE, plt, save
from perf.harness import Effort
from rnnkern import nn

CASES = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
SHAPES = ((50, 8, 64), (220, 64, 128), (256, 32, 256))
"""(T, B, N)."""


def measure(counts: list[int]) -> list[record.Row]:
    """Forward and backward of each layer with so many threads, in alternating rounds."""
    facts, device = record.facts(torch.device("cpu"), "python -m perf.threads_picture"), torch.device("cpu")
    rows = []
    for name, make in CASES.items():
        for steps, batch, size in SHAPES:
            torch.manual_seed(0)
            layer, x = make(size, size), torch.randn(steps, batch, size)

            def call(threads: int, layer=layer, x=x) -> None:
                torch.set_num_threads(threads)
                layer(x)[0].sum().backward()

            calls = {str(n): (lambda n=n, call=call: call(n)) for n in counts}
            times = harness.interleave(calls, device, Effort(3.0))
            for n in counts:
                speeds = [a / b for a, b in zip(times["1"], times[str(n)], strict=True)]
                row = facts | {"threads": n, "layer": name, "shape": f"{steps}x{batch}x{size}"}
                row |= {"ms": record.significant(1e3 * statistics.median(times[str(n)]))}
                rows.append(row | {"speed_up": record.significant(statistics.median(speeds))})
    return rows


def main() -> None:
    counts = [2**k for k in range(int(math.log2(os.cpu_count() or 1)) + 1)]
    rows = measure(counts)
    record.append(record.folder(torch.device("cpu")) / "threads.csv", rows)
    print(record.table([{k: row[k] for k in ("layer", "shape", "threads", "ms", "speed_up")} for row in rows]))
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(SHAPES), figsize=(10, 3.4), layout="constrained", sharey=True)
        for axes, shape in zip(panels, SHAPES, strict=True):
            axes.plot(counts, counts, ":", color="#999999", label="perfect")
            for name, colour in zip(CASES, COLOURS, strict=False):
                own = [row for row in rows if row["layer"] == name and row["shape"] == "x".join(map(str, shape))]
                axes.plot(counts, [float(row["speed_up"]) for row in own], "o-", color=colour, label=name)
            axes.set(xscale="log", yscale="log", xlabel=f"threads\n(T, B, N = {', '.join(map(str, shape))})")
            axes.xaxis.set_major_locator(FixedLocator(counts))
            axes.yaxis.set_major_locator(FixedLocator(counts))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(ScalarFormatter())
                axis.set_minor_formatter(NullFormatter())
            axes.grid(color="#eeeeee")
        panels[0].set_ylabel("speed-up over one thread (times)")
        panels[0].legend(frameon=False)
        save(figure, record.PICTURES / "threads.png")


if __name__ == "__main__":
    main()
