"""The pictures of the demo: digits (learning curves and time per epoch), and recall (accuracy and memory)."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from perf.figure import LAYER_COLOURS, STYLE, numbered, plt, save
from perf.harness import OURS
from perf.record import Row

COLOURS = (("#9ecae8", "#08519c"), ("#fdc38d", "#b63c02"))
"""For each network the colours of its peer and of rnnkern."""
SIZE = (13, 4.2)


def digits(path: Path, pairs: Mapping, spread: Mapping[str, np.ndarray], about: str) -> None:
    """Draws ``network -> provider -> training``, with the peer first in each pair, and a band from ``spread``."""
    with plt.rc_context(STYLE):
        figure, (loss, accuracy, cost) = plt.subplots(1, 3, figsize=SIZE, layout="constrained")
        for (network, pair), colours in zip(pairs.items(), COLOURS, strict=True):
            for (provider, training), colour in zip(pair.items(), colours, strict=True):
                thin = provider == OURS
                line = {"color": colour, "linewidth": 1.4 if thin else 6, "solid_capstyle": "round"}
                epochs = np.arange(1, len(training.seconds) + 1)
                per_epoch = np.array_split(np.array(training.losses), len(training.seconds))
                label = f"{network.name}, {provider}"
                loss.plot(epochs, [losses.mean() for losses in per_epoch], label=label, **line)
                accuracy.plot(epochs, [100 * a for a in training.accuracy], **line)
            if network.name in spread:
                found = 100 * spread[network.name][:, : len(epochs)]
                label = f"{network.peer_name}, {len(found)} other seeds"
                accuracy.fill_between(epochs, found.min(0), found.max(0), color=colours[0], alpha=0.35, linewidth=0,
                                      label=label)  # fmt: skip
        loss.set(ylabel="training loss, nats", xlabel="epoch", yscale="log")
        loss.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        loss.yaxis.set_minor_formatter(NullFormatter())
        loss.legend(frameon=False, handlelength=2.5, loc="lower left")
        accuracy.set(ylabel="test accuracy, %", xlabel="epoch", ylim=(0, 100))
        if spread:
            accuracy.legend(frameon=False, loc="lower right")
        grids(loss, accuracy)
        bars(cost, pairs)
        figure.suptitle("Handwritten digits, two pixels per step: same initial weights, same batches", fontsize=13)
        figure.supxlabel(about, fontsize=8, color="#777777")
        save(figure, path)


def bars(axes: plt.Axes, pairs: Mapping) -> None:
    ticks = []
    for k, ((network, pair), colours) in enumerate(zip(pairs.items(), COLOURS, strict=True)):
        left = 2.5 * k
        for x, (provider, training), colour in zip((left, left + 1), pair.items(), colours, strict=True):
            axes.bar(x, statistics.median(training.seconds), width=0.86, color=colour)
            ticks.append((x, provider))
        peer, ours = (np.array(training.seconds) for training in pair.values())
        axes.annotate(
            f"{statistics.median(peer / ours):.1f} times\nas fast",
            (left + 1, statistics.median(ours)),
            (0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=10,
            fontweight="bold",
            color=colours[1],
        )
        axes.text(left + 0.5, -0.13, network.name, ha="center", transform=axes.get_xaxis_transform())
    axes.set_xticks(*zip(*ticks, strict=True))
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.2)
    axes.set(ylabel="seconds per epoch")


def recall(path: Path, curves: Sequence[Row], memories: Sequence[Row], about: str) -> None:
    """Draws the results of ``perf.demo_recall``."""
    last = curves[-1]
    with plt.rc_context(STYLE):
        figure, (left, right, *more) = plt.subplots(1, 2 + bool(memories), figsize=SIZE, layout="constrained")
        for model in dict.fromkeys(row["model"] for row in curves):
            name = model.partition(".")[2]
            for axes, phase, x, marker in ((left, "training", "update", ""), (right, "test", "length", "o")):
                own = [row for row in curves if (row["model"], row["phase"]) == (model, phase)]
                values = [100 * row["measured"] for row in own]
                axes.plot([row[x] for row in own], values, marker=marker, color=LAYER_COLOURS[name], label=name)
        left.set(xlabel="update", ylabel=f"accuracy in training, T = {last['trained_length']}, %", ylim=(0, 102))
        left.legend(frameon=False, loc="center right")
        right.set(xlabel="T in the test", ylabel="accuracy in the test, %", xscale="log", ylim=(0, 102))
        numbered(right.xaxis, [row["length"] for row in curves if row["phase"] == "test"])
        for axes in more:
            kept(axes, memories)
        grids(left, right, *more)
        figure.suptitle(f"Copy memory: {last['copied']} symbols must be repeated after T blank steps", fontsize=13)
        figure.supxlabel(about, fontsize=8, color="#777777")
        save(figure, path)


def kept(axes: plt.Axes, rows: Sequence[Row]) -> None:
    for layer, form in dict.fromkeys((row["layer"], row["form"]) for row in rows):
        own = [row for row in rows if (row["layer"], row["form"]) == (layer, form)]
        line = {"color": LAYER_COLOURS[layer], "marker": "o", "linestyle": "-" if form == "fused" else "--"}
        label = layer if form == "fused" else f"{layer}, Python loop"
        axes.plot([row["T"] for row in own], [row["saved_bytes"] / 1e6 for row in own], label=label, **line)
    axes.set(xlabel="T", ylabel="kept for the backward pass, MB", xscale="log", yscale="log")
    numbered(axes.xaxis, [row["T"] for row in rows])
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_ylim(top=8 * axes.get_ylim()[1])  # room for the legend
    axes.legend(frameon=False, fontsize=9)


def grids(*panels: plt.Axes) -> None:
    for axes in panels:
        axes.grid(color="#eeeeee")
        axes.set_axisbelow(True)
