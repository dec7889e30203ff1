"""The picture of the demo: curves that lie on one another, and what an epoch costs."""

import statistics
from pathlib import Path

import numpy as np

from perf.figure import STYLE, plt, save
from perf.harness import OURS

COLOURS = (("#9ecae8", "#08519c"), ("#fdc38d", "#b63c02"))
"""For each network its peer's and ours."""


def draw(path: Path, pairs: dict, about: str) -> None:
    """Draws ``network -> provider -> training``; the peer stands first in each pair."""
    with plt.rc_context(STYLE):
        figure, (loss, accuracy, cost) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
        for (network, pair), colours in zip(pairs.items(), COLOURS, strict=True):
            for (provider, training), colour in zip(pair.items(), colours, strict=True):
                thin = provider == OURS
                line = {"color": colour, "linewidth": 1.4 if thin else 6, "solid_capstyle": "round"}
                epochs = np.arange(1, len(training.seconds) + 1)
                per_epoch = np.array_split(np.array(training.losses), len(training.seconds))
                label = f"{network.name}, {provider}"
                loss.plot(epochs, [losses.mean() for losses in per_epoch], label=label, **line)
                accuracy.plot(epochs, [100 * a for a in training.accuracy], **line)
        loss.set(title="training loss", xlabel="epoch", ylim=(0, None))
        loss.legend(frameon=False, handlelength=2.5)
        accuracy.set(title="test accuracy, %", xlabel="epoch", ylim=(0, 100))
        for axes in (loss, accuracy):
            axes.grid(color="#eeeeee")
            axes.set_axisbelow(True)
        bars(cost, pairs)
        figure.suptitle("Handwritten digits, pixel by pixel: the same weights, the same batches", fontsize=13)
        figure.supxlabel(about, fontsize=8, color="#777777")
        save(figure, path)


def bars(axes: plt.Axes, pairs: dict) -> None:
    ticks = []
    for k, ((network, pair), colours) in enumerate(zip(pairs.items(), COLOURS, strict=True)):
        left = 2.5 * k
        for x, (provider, training), colour in zip((left, left + 1), pair.items(), colours, strict=True):
            axes.bar(x, statistics.median(training.seconds), width=0.86, color=colour)
            ticks.append((x, provider))
        peer, ours = (np.array(training.seconds) for training in pair.values())
        axes.annotate(
            f"{statistics.median(peer / ours):.1f}x\nas fast",
            (left + 1, statistics.median(ours)),
            (0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=12,
            fontweight="bold",
            color=colours[1],
        )
        axes.text(left + 0.5, -0.13, network.name, ha="center", transform=axes.get_xaxis_transform())
    axes.set_xticks(*zip(*ticks, strict=True))
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.2)
    axes.set(title="seconds per epoch")
