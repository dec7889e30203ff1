"""Picture 5: slow modes, and training from initial values with chosen gains of the gates (Can, Krishnamurthy and Schwab
2020, figure 4).

The trainings take minutes, so they have a CSV of their own, perf/results/<device>/gates-training.csv, from which the
picture is drawn. The optimizer is not in the paper; here it is Adam with a rate of 1e-3 and without clipping.
"""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F

import rnnkern
from perf import datasets, record
from perf.datasets import Images
from perf.models import Network
from perf.progress import Progress
from perf.record import Row, significant
from rnnkern.analysis import Gains
from rnnkern.nn.init import gate_variance_

A_H, A_Z, A_R = (1.5, 2.0, 2.5, 3.0, 4.0), (0.1, 2.0, 5.0, 10.0), 0.1
SEEDS, BATCH, RATE = 3, 100, 1e-3
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
        data, about, hidden, epochs = datasets.mnist(folder, None), "MNIST", 256, 15
    facts = facts | {"data": about, "hidden": hidden, "batch": BATCH, "optimizer": f"Adam {RATE:g}"}
    cases = list(product(range(SEEDS), A_H, A_Z))
    with Progress("training", len(cases), "training") as progress:
        for seed, a_h, a_z in cases:
            case = {"a_h": a_h, "a_z": a_z, "a_r": A_R, "seed": seed}
            kept([facts | case | row for row in train(data, hidden, epochs, Gains(a_h, a_z, A_R), seed)])
            progress.advance()
