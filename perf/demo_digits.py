"""First part of the demo: an LSTM and a modReLU RNN are trained on handwritten digits, each with rnnkern and with the
usual alternative (torch.nn or a Python loop).

The data are 1,797 images of 8 x 8 pixels, in one fixed permutation, two pixels per step: after 32 steps the network
predicts the digit.
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module, Parameter

import rnnkern.nn
from perf import datasets, harness, record
from perf.datasets import Images
from perf.harness import OURS
from perf.models import orthogonal, orthogonal_gates
from perf.progress import Progress
from perf.record import Row, significant
from rnnkern import testing

PIXELS, HIDDEN, BATCH, CLIP = 2, 128, 100, 1.0
AGREEMENT, AGREEING_UPDATES = 1e-3, 10
SPREAD = "demo_spread.csv"


class ModReLULoop(Module):
    """The recurrence as a Python loop; its parameters are those of ``rnnkern.nn.RNN``."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight_ih_l0 = Parameter(torch.empty(hidden_size, input_size))
        self.weight_hh_l0 = Parameter(torch.empty(hidden_size, hidden_size))
        self.bias_ih_l0 = Parameter(torch.empty(hidden_size))
        self.bias_hh_l0 = Parameter(torch.empty(hidden_size))
        self.modrelu_bias_l0 = Parameter(torch.empty(hidden_size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u = F.linear(x, self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        h, outputs = u.new_zeros(u.shape[1:]), []
        for u_t in u.unbind(0):
            z = u_t + F.linear(h, self.weight_hh_l0)
            h = torch.sign(z) * torch.relu(torch.abs(z) + self.modrelu_bias_l0)
            outputs.append(h)
        return torch.stack(outputs), h


class Network(NamedTuple):
    """A recurrent layer in two implementations with compatible ``state_dict``."""

    name: str
    ours: Callable[[int, int], Module]
    peer: Callable[[int, int], Module]
    peer_name: str
    initialise: Callable[[Module], None]
    epochs: int
    rate: float  # highest learning rate of the one-cycle schedule


NETWORKS = (
    Network("LSTM", rnnkern.nn.LSTM, torch.nn.LSTM, "torch.nn", orthogonal_gates, 30, 1e-2),
    Network(
        "modReLU RNN",
        functools.partial(rnnkern.nn.RNN, nonlinearity="modrelu"),
        ModReLULoop,
        "Python loop",
        orthogonal,
        20,
        2e-3,
    ),
)


class Classifier(Module):
    def __init__(self, rnn: Module) -> None:
        super().__init__()
        self.rnn, self.head = rnn, torch.nn.Linear(HIDDEN, 10)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.rnn(x)
        return self.head(h[-1])


class Training:
    """State of the training of one implementation."""

    def __init__(self, model: Classifier, updates: int, rate: float) -> None:
        self.model = model
        self.optimiser = torch.optim.Adam(model.parameters())
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimiser, rate, updates, pct_start=0.15)
        self.losses: list[float] = []  # one per update
        self.seconds: list[float] = []  # one per epoch
        self.accuracy: list[float] = []  # on the test set, after each epoch

    def epoch(self, data: Images, number: int, seed: int = 0) -> None:
        start = time.perf_counter()
        for batch in batches(len(data.train_y), number, seed):
            loss = F.cross_entropy(self.model(data.train_x[:, batch]), data.train_y[batch])
            self.optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimiser.step()
            self.schedule.step()
            self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)
        with torch.no_grad():
            self.accuracy.append((self.model(data.test_x).argmax(1) == data.test_y).double().mean().item())


def digits() -> Images:
    """The images with two pixels per step, normalized to mean 0 and variance 1 on the training set."""
    data = datasets.digits()
    mean, deviation = data.train_x.mean(), data.train_x.std()

    def steps(x: Tensor) -> Tensor:
        return ((x - mean) / deviation).view(-1, PIXELS, x.shape[1]).mT.contiguous()

    return data._replace(train_x=steps(data.train_x), test_x=steps(data.test_x))


def batches(count: int, epoch: int, seed: int = 0) -> tuple[Tensor, ...]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(1000 * seed + epoch)).split(BATCH)


def prepare(network: Network, data: Images, seed: int = 0) -> dict[str, Training]:
    """Both implementations with equal weights; the alternative first."""
    torch.manual_seed(seed)
    ours, peer = Classifier(network.ours(PIXELS, HIDDEN)), Classifier(network.peer(PIXELS, HIDDEN))
    network.initialise(ours.rnn)
    peer.load_state_dict(ours.state_dict())
    updates = network.epochs * len(batches(len(data.train_y), 0))
    return {name: Training(model, updates, network.rate) for name, model in ((network.peer_name, peer), (OURS, ours))}


def disagreement(a: Sequence[float], b: Sequence[float]) -> float:
    """Largest difference between the losses during the first updates.

    Raises:
        RuntimeError: the difference exceeds ``AGREEMENT``, or there are no losses to compare.
    """
    differences = [abs(x - y) for x, y in zip(a[:AGREEING_UPDATES], b[:AGREEING_UPDATES], strict=True)]
    if not differences or not all(difference <= AGREEMENT for difference in differences):  # NaN fails too
        raise RuntimeError(
            f"the losses of the first {len(differences)} updates must agree to {AGREEMENT:g}, got {differences}"
        )
    return max(differences)


def train(network: Network, data: Images, epochs: int) -> Iterator[dict[str, Training]]:
    """Trains both implementations, one epoch at a time in alternating order, and yields them after each epoch."""
    pair = prepare(network, data)
    for number in range(epochs):
        for name in pair if number % 2 == 0 else reversed(pair):
            pair[name].epoch(data, number)
        disagreement(*(training.losses for training in pair.values()))
        yield pair


def peak_bytes(training: Training, data: Images) -> int:
    """Peak memory of one forward and backward pass on one batch."""
    x, y = data.train_x[:, :BATCH], data.train_y[:BATCH]

    def gradients() -> None:
        torch.autograd.grad(F.cross_entropy(training.model(x), y), list(training.model.parameters()))

    gradients()
    return testing.peak_bytes(gradients)


def figures(network: Network, pair: dict[str, Training], data: Images) -> list[Row]:
    """One row per implementation. ``speedup`` is the alternative's time over rnnkern's, per epoch."""
    peer, ours = pair[network.peer_name], pair[OURS]
    shared = {
        "updates": len(ours.losses),
        "loss_difference": significant(disagreement(peer.losses, ours.losses)),
        **harness.quantiles("speedup", [a / b for a, b in zip(peer.seconds, ours.seconds, strict=True)]),
    }
    return [
        {
            "network": network.name,
            "provider": name,
            "test_accuracy": significant(training.accuracy[-1]),
            "last_loss": significant(statistics.fmean(training.losses[-len(batches(len(data.train_y), 0)) :])),
            "epoch_seconds": significant(statistics.median(training.seconds)),
            "peak_bytes": peak_bytes(training, data),
            **shared,
        }
        for name, training in pair.items()
    ]


def run(epochs: int | None = None) -> tuple[dict[Network, dict[str, Training]], list[Row]]:
    """Trains all networks for at most ``epochs`` epochs. Returns the trainings, and a row for each."""
    data, pairs, rows = digits(), {}, []
    for network in NETWORKS:
        count = min(epochs or network.epochs, network.epochs)
        with Progress("", count, "epoch") as progress:
            progress.what = f"{network.name}, digits"
            for pair in train(network, data, count):
                progress.what = f"{network.name}, digits, test accuracy {100 * pair[OURS].accuracy[-1]:.0f} %"
                progress.advance()
        pairs[network] = pair
        rows += figures(network, pair, data)
    return pairs, rows


# ---- how far trainings differ by themselves


def peer_curves(network: Network, seeds: Sequence[int]) -> Iterator[list[Row]]:
    """Trains the alternative with each seed; yields the rows of a training, one per epoch."""
    data = digits()
    for seed in seeds:
        training = prepare(network, data, seed)[network.peer_name]
        settings = {"network": network.name, "provider": network.peer_name, "epochs": network.epochs}
        settings |= {"rate": network.rate, "seed": seed}
        for number in range(network.epochs):
            training.epoch(data, number, seed)
        yield [
            settings | {"epoch": k, "test_accuracy": significant(accuracy)}
            for k, accuracy in enumerate(training.accuracy, 1)
        ]


def spread(results: Path = record.RESULTS) -> dict[str, np.ndarray]:
    """For each network the published test accuracies of the alternative, (seeds, epochs). Networks with other training
    settings are left out."""
    rows = [row for path in sorted(results.glob(f"*/{SPREAD}")) for row in record.read(path)]
    found = {}
    for network in NETWORKS:
        settings = {"network": network.name, "epochs": str(network.epochs), "rate": str(network.rate)}
        own = [row for row in rows if row | settings == row]
        own = [row for row in own if row["date"] == max(row["date"] for row in own)]
        if own:
            found[network.name] = np.array([float(row["test_accuracy"]) for row in own]).reshape(-1, network.epochs)
    return found


# ---- what is printed


def table(rows: Sequence[Row]) -> list[Row]:
    return [
        {
            "network": row["network"],
            "run by": row["provider"],
            "updates": row["updates"],
            "s per epoch": row["epoch_seconds"],
            "times as fast": row["speedup_50"] if row["provider"] == OURS else "",
            "peak of an update, MB": significant(row["peak_bytes"] / 1e6),
            "training loss, nats": row["last_loss"],
            "test accuracy, %": percent(row["test_accuracy"]),
        }
        for row in rows
    ]


def summary(rows: Sequence[Row], spread: Mapping[str, np.ndarray]) -> list[str]:
    """The summary in words."""
    lines = []
    for peer, ours in zip(rows[::2], rows[1::2], strict=True):
        other = peer["provider"].replace("Python loop", "the Python loop")
        lines.append(
            f"{ours['network']}: rnnkern trains {ours['speedup_50']:.1f} times as fast as {other}. Test accuracy "
            f"{percent(ours['test_accuracy'])} % with rnnkern, {percent(peer['test_accuracy'])} % with {other}"
        )
        if ours["network"] in spread:
            ends = spread[ours["network"]][:, -1]
            lines[-1] += (
                f", which alone ends between {percent(ends.min())} and {percent(ends.max())} % over {len(ends)} seeds"
            )
        lines[-1] += "."
    return lines


def percent(share: float) -> float:
    return round(100 * share, 1)
