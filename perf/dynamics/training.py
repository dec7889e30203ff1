"""Picture 5: slow modes, and training from initial values with chosen gains of the gates (Can, Krishnamurthy and Schwab
2020, figure 4).

The trainings take minutes, so they have a CSV of their own, perf/results/<device>/gates-training.csv, from which the
picture is drawn. The optimizer is not in the paper; here it is Adam with a rate of 1e-3 and without clipping.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes

import rnnkern
from perf import datasets, record
from perf.datasets import Images
from perf.dynamics import numbers
from perf.dynamics.networks import steady
from perf.dynamics.rows import Rows
from perf.figure import COLOURS, STYLE, plt, save
from perf.models import Network
from perf.progress import Progress
from perf.record import Row, significant
from perf.tables import Record, of_all_devices
from rnnkern.analysis import Gains, slow_fraction
from rnnkern.nn.init import gate_variance_

A_H, A_Z, A_R = (1.5, 2.0, 2.5, 3.0, 4.0), (0.1, 2.0, 5.0, 10.0), 0.1
SEEDS, BATCH, RATE = 3, 100, 1e-3
EPOCHS, GOAL = 15, 0.75
"""As in the paper: the number of epochs after which training accuracy is compared, and the accuracy to be reached."""
NAME = "gates-training.csv"


def train(data: Images, hidden: int, epochs: int, gains: Gains, seed: int) -> Iterator[Row]:
    """Trains a GRU without biases to tell the class of an image after its last pixel; yields a row per epoch. Input
    weights and the linear layer have PyTorch's initial values."""
    torch.manual_seed(seed)
    rnn = rnnkern.nn.GRU(1, hidden, reset_gate="before", bias=False)
    network = Network(gate_variance_(rnn, gains), hidden, 10, each_step=False)
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    for epoch in range(1, epochs + 1):
        losses = []
        for batch in torch.randperm(len(data.train_y)).split(BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(network(data.train_x[:, batch])[0], data.train_y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found = [accuracy(network, *part) for part in ((data.train_x, data.train_y), (data.test_x, data.test_y))]
        numbers = torch.tensor(losses).mean().item(), *found
        yield {"epoch": epoch} | dict(
            zip(("loss", "train_accuracy", "test_accuracy"), map(significant, numbers), strict=True)
        )


@torch.no_grad()
def accuracy(network: Network, x: torch.Tensor, y: torch.Tensor) -> float:
    parts = [network(part)[0].argmax(1) for part in x.split(1000, 1)]
    return (torch.cat(parts) == y).double().mean().item()


def sweep(folder: Path | None, facts: Row, kept: Callable[[list[Row]], None]) -> None:
    """Trains with all gains and seeds; ``kept`` receives the rows of each training at its end.

    Args:
        folder: contains MNIST, as for :func:`perf.datasets.mnist`. None trains on scikit-learn's digits, which are so
            few that the number of epochs is larger.
    """
    if folder is None:
        data, about, hidden, epochs = datasets.digits(None), "scikit-learn digits", 64, 40
    else:
        data, about, hidden, epochs = datasets.mnist(folder, None), "MNIST", 256, EPOCHS
    facts = facts | {"data": about, "hidden": hidden, "batch": BATCH, "optimizer": f"Adam {RATE:g}"}
    cases = list(product(range(SEEDS), A_H, A_Z))
    with Progress("training", len(cases), "training") as progress:
        for seed, a_h, a_z in cases:
            case = {"a_h": a_h, "a_z": a_z, "a_r": A_R, "seed": seed}
            kept([facts | case | row for row in train(data, hidden, epochs, Gains(a_h, a_z, A_R), seed)])
            progress.advance()


# ---- the picture


def slow_and_trained(folder: Path, quick: bool, rows: Rows, advance: Callable[[], None]) -> None:
    with plt.rc_context(STYLE):
        figure, (slow, epochs, reached) = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
        slow_modes(slow, *((64, 1) if quick else (256, 4)), rows, advance)
        found = newest(of_all_devices(record.RESULTS, NAME))
        last = found[-1]
        beyond = int(last["epoch"]) + 4  # where trainings are drawn that do not reach the accuracy
        for a_z, colour in zip(A_Z, COLOURS, strict=False):
            of_gain = [row for row in found if float(row["a_z"]) == a_z]
            curve(epochs, of_gain, lambda part: min(epochs_needed(part), beyond), colour, a_z)
            curve(reached, of_gain, accuracy_after, colour, a_z)
            for a_h in A_H:
                trainings = [row for row in of_gain if float(row["a_h"]) == a_h]
                for quantity, measured, most in (
                    (f"epochs to {GOAL:.0%}", epochs_needed, math.inf),
                    (f"training accuracy after {EPOCHS} epochs", accuracy_after, 1.0),
                ):
                    middle = statistics.median(measured(part) for part in by_seed(trainings))
                    rows.add(f"training a_z {a_z:g}", quantity, a_h, middle, 0.0, most)
        epochs.set(xlabel="gain $a_h$ of the candidate", ylabel=f"epochs to a training accuracy of {GOAL:.0%}")
        epochs.set_ylim(0, beyond + 2)
        ticks = range(0, int(last["epoch"]) + 1, 10)
        epochs.set_yticks([*ticks, beyond], [*map(str, ticks), "never"])
        reached.set(xlabel="gain $a_h$ of the candidate", ylabel=f"training accuracy after {EPOCHS} epochs")
        for axes in (epochs, reached):
            axes.set_title(f"GRU of {last['hidden']} units on {last['data']}", fontsize=10)
        for axes in (slow, epochs, reached):
            axes.grid(color="#eeeeee")
            axes.set_axisbelow(True)
            axes.legend(frameon=False, fontsize=8)
        save(figure, folder / "gates-training.png")


def slow_modes(axes: Axes, units: int, seeds: int, rows: Rows, advance: Callable[[], None]) -> None:
    """Means over networks; those with a_h = 2 hardly move, so that they have few slow modes up to a_z = 10."""
    for a_h, colour in zip((2.0, *numbers.SLOW), COLOURS, strict=False):
        tried, shares = (0.0, 2.0, 5.0, 10.0, 20.0), []
        for a_z in tried:
            gains = Gains(a_h, a_z, A_R)
            found = [steady("gru_reset_before", gains, units, seed, 300).eigenvalues for seed in range(seeds)]
            shares.append(slow_fraction(torch.stack(found)).mean().item())
            about, near = numbers.SLOW.get(a_h, {}).get(a_z, 0.0), 0.04 if units == 256 else 0.12
            most = 0.44 if a_h == 2 and a_z == 20 else about + near
            rows.add(f"GRU a_h {a_h:g}", "share of slow modes", a_z, shares[-1], about - near, most)
            advance()
        axes.plot(tried, shares, "o-", color=colour, markersize=4, label=f"$a_h$ = {a_h:g}")
    axes.set(xlabel="gain $a_z$ of the update gate", ylabel="share of eigenvalues within 0.05 of 1", ylim=(0, 0.5))
    axes.set_title(f"before training, {units} units, $a_r$ = {A_R:g}", fontsize=10)


def newest(rows: Sequence[Record]) -> list[Record]:
    """The rows of the newest sweep."""
    return [row for row in rows if (row["date"], row["data"]) == (rows[-1]["date"], rows[-1]["data"])]


def by_seed(rows: Sequence[Record]) -> list[list[Record]]:
    return [[row for row in rows if row["seed"] == seed] for seed in dict.fromkeys(row["seed"] for row in rows)]


def epochs_needed(training: Sequence[Record]) -> float:
    """Infinite if the accuracy is never reached."""
    reached = [int(row["epoch"]) for row in training if float(row["train_accuracy"]) >= GOAL]
    return min(reached, default=math.inf)


def accuracy_after(training: Sequence[Record]) -> float:
    return next(float(row["train_accuracy"]) for row in training if int(row["epoch"]) == EPOCHS)


def curve(
    axes: Axes, rows: Sequence[Record], measured: Callable[[Sequence[Record]], float], colour: str, a_z: float
) -> None:
    """The median over the seeds for each a_h, with a bar from the lowest to the highest."""
    values = [
        sorted(measured(part) for part in by_seed([row for row in rows if float(row["a_h"]) == a_h])) for a_h in A_H
    ]
    shift = 0.02 * (A_Z.index(a_z) - 1.5)  # so that bars do not cover each other
    x = [a_h + shift for a_h in A_H]
    axes.plot(x, [statistics.median(part) for part in values], "o-", color=colour, markersize=4,
              label=f"$a_z$ = {a_z:g}")  # fmt: skip
    axes.vlines(x, [part[0] for part in values], [part[-1] for part in values], color=colour, linewidth=1)
