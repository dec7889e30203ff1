"""Trains recurrent networks on handwritten digits twice, from the same weights on the same batches: with rnnkern and
with what one would use without it. Then RelRNN and an LSTM learn to recall. What ``make demo`` runs; about three
minutes on two cores.

1,797 scans of 8 x 8 pixels, read pixel by pixel in one fixed permutation: 64 steps of one number, then the digit.
"""

import argparse
import functools
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module, Parameter
from tqdm import tqdm

import rnnkern.nn
from perf import demo_picture, demo_recall, harness, record
from perf.datasets import Images, digits
from perf.harness import OURS
from perf.models import forget_little, orthogonal
from perf.record import Row, significant

HIDDEN, BATCH, CLIP = 128, 100, 1.0
AGREEMENT, AGREEING_UPDATES = 1e-4, 20
PICTURE = record.ROOT / "docs" / "images" / "demo.png"


class ModReLULoop(Module):
    """The recurrence as one writes it without rnnkern; parameters as those of ``rnnkern.nn.RNN``."""

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
    """A recurrent layer in two implementations that share a ``state_dict``."""

    name: str
    ours: Callable[[int, int], Module]
    peer: Callable[[int, int], Module]
    peer_name: str
    initialise: Callable[[Module], None]
    epochs: int
    rate: float  # the highest of the one-cycle schedule


NETWORKS = (
    Network("LSTM", rnnkern.nn.LSTM, torch.nn.LSTM, "torch.nn", forget_little, 60, 5e-3),
    Network(
        "modReLU RNN",
        functools.partial(rnnkern.nn.RNN, nonlinearity="modrelu"),
        ModReLULoop,
        "Python loop",
        orthogonal,
        30,
        1e-3,
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
    """One implementation on its way."""

    def __init__(self, model: Classifier, updates: int, rate: float) -> None:
        self.model = model
        self.optimiser = torch.optim.Adam(model.parameters())
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimiser, rate, updates, pct_start=0.15)
        self.losses: list[float] = []  # per update
        self.seconds: list[float] = []  # per epoch
        self.accuracy: list[float] = []  # on the test set, after each epoch

    def epoch(self, data: Images, number: int) -> None:
        start = time.perf_counter()
        for batch in batches(len(data.train_y), number):
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


def batches(count: int, epoch: int) -> tuple[Tensor, ...]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(epoch)).split(BATCH)


def prepare(network: Network, data: Images, epochs: int) -> dict[str, Training]:
    """Both implementations, of equal weights; the peer first."""
    torch.manual_seed(0)
    ours, peer = Classifier(network.ours(1, HIDDEN)), Classifier(network.peer(1, HIDDEN))
    network.initialise(ours.rnn)
    peer.load_state_dict(ours.state_dict())
    updates = max(epochs, network.epochs) * len(batches(len(data.train_y), 0))
    return {name: Training(model, updates, network.rate) for name, model in ((network.peer_name, peer), (OURS, ours))}


def disagreement(a: Sequence[float], b: Sequence[float]) -> float:
    """The largest difference of losses over the first updates.

    Raises:
        RuntimeError: it exceeds ``AGREEMENT``, or there are no losses to compare.
    """
    differences = [abs(x - y) for x, y in zip(a[:AGREEING_UPDATES], b[:AGREEING_UPDATES], strict=True)]
    if not differences or not all(difference <= AGREEMENT for difference in differences):  # NaN is refused too
        raise RuntimeError(
            f"the losses of the first {len(differences)} updates must agree to {AGREEMENT:g}, got {differences}"
        )
    return max(differences)


def train(network: Network, data: Images, epochs: int) -> Iterator[dict[str, Training]]:
    """Trains both implementations epoch by epoch, in alternating order; yields them after each epoch."""
    pair = prepare(network, data, epochs)
    for number in range(epochs):
        for name in pair if number % 2 == 0 else reversed(pair):
            pair[name].epoch(data, number)
        disagreement(*(training.losses for training in pair.values()))
        yield pair


def peak_bytes(training: Training, data: Images) -> int:
    """Of one forward and backward on one batch."""
    x, y = data.train_x[:, :BATCH], data.train_y[:BATCH]

    def gradients() -> None:
        torch.autograd.grad(F.cross_entropy(training.model(x), y), list(training.model.parameters()))

    gradients()
    return harness.peak_bytes(gradients, x.device)


def figures(network: Network, pair: dict[str, Training], data: Images) -> list[Row]:
    """A row for each implementation. ``speedup`` is the peer's seconds over rnnkern's, epoch by epoch."""
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


def main(
    argv: Sequence[str], results: Path = record.RESULTS, picture: Path = PICTURE, recall: Path = demo_recall.PICTURE
) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and rnnkern")
    parser.add_argument("--epochs", type=int, help="instead of each network's own number")
    parser.add_argument("--updates", type=int, default=3000, help="the most of a layer that learns to recall")
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    data, rows, pairs = digits(), [], {}
    epochs = {network: chosen.epochs or network.epochs for network in NETWORKS}
    with tqdm(total=sum(epochs.values()), unit="epoch", disable=None) as bar:
        for network in NETWORKS:
            for pair in train(network, data, epochs[network]):
                bar.update()
                bar.set_postfix_str(f"{network.name}: test accuracy {pair[OURS].accuracy[-1]:.0%}")
            pairs[network] = pair
            rows += figures(network, pair, data)
    device = data.train_x.device
    facts = record.facts(device, shlex.join(["python", "-m", "perf.demo", *argv]))
    record.append(record.folder(device, results) / "demo.csv", [facts | row for row in rows])
    demo_picture.draw(picture, pairs, f"{facts['device']}, {facts['threads']} threads, PyTorch {facts['torch']}")
    print(record.table(rows))
    demo_recall.run(chosen.updates, facts, recall)


if __name__ == "__main__":
    main(sys.argv[1:])
