"""Measures how far gradients reach: the norm of dL/dh_t over t in networks trained on denoise, for several layers and
sizes of the memory, and which events their steps attend to.

Networks that are not in the folder ``--keep`` are trained first. From the CSVs of this module and perf.memory,
perf.memory_picture draws the three panels of the thesis.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import Module, RNNBase

import rnnkern.nn
from perf import gradient_picture, record
from perf.models import Network
from perf.progress import Progress
from perf.recall import RECALL
from perf.record import Row, significant
from perf.tasks import Batch
from rnnkern.analysis import gradient_norms

COPIED, HIDDEN, BATCH, UPDATES, RATE = 5, 64, 32, 2000, 3e-3
SHOWN_LENGTH = 100
"""T of the attention maps."""


class Subject(NamedTuple):
    name: str
    build: Callable[[int, int], Module]
    rate: float = RATE


def rel(buffer: int, relevant: int) -> Subject:
    def build(inputs: int, hidden: int) -> Module:
        return rnnkern.nn.RelRNN(inputs, hidden, buffer_size=buffer, relevant_size=relevant)

    return Subject(f"RelRNN {buffer}/{relevant}", build)


SUBJECTS = (
    Subject("RNN", lambda inputs, hidden: rnnkern.nn.RNN(inputs, hidden)),
    Subject("LSTM", lambda inputs, hidden: rnnkern.nn.LSTM(inputs, hidden), 1e-2),
    Subject("MemRNN", lambda inputs, hidden: rnnkern.nn.MemRNN(inputs, hidden)),
    rel(10, 10),
    rel(10, 5),
    rel(10, 0),
    rel(5, 10),
    rel(20, 10),
)
"""The networks, with buffer_size / relevant_size."""


def norms(network: Network, x: Tensor, y: Tensor, copied: int) -> Tensor:
    """(T,): the norm of the total gradient of the loss, through all later steps, with respect to h_t, averaged over the
    batch."""

    def loss(h: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(network.head(h)[-copied:].flatten(0, 1), y[-copied:].flatten())

    if isinstance(network.rnn, RNNBase):
        return gradient_norms(network.rnn, x, loss).mean(1)
    return norms_by_hooks(network.rnn, x, loss).mean(1)


def norms_by_hooks(layer: Module, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """(T, B), for any layer with a reference: the reference stacks its h_t, and a hook on the function that computed
    each h_t records the gradient that arrives there."""
    with rnnkern.use("reference"):
        h, _ = layer(x)
    node = h.grad_fn
    while not node.name().startswith("StackBackward"):
        node = node.next_functions[0][0]
    found: dict[int, Tensor] = {}
    for row, (made, output) in enumerate(node.next_functions):

        def told(grads: tuple[Tensor, ...], row: int = row, output: int = output) -> None:
            found[row] = grads[output].detach()

        made.register_prehook(told)
    loss(h).backward()
    steps = x.shape[0]
    rows = torch.stack([found[row] for row in range(len(found))])  # (T, B, n), or (T B, n) of the relevancy layers
    return rows.reshape(steps, -1, rows.shape[-1]).norm(dim=-1)


def learnt(subject: Subject, length: int, folder: Path, told: Callable[[], None]) -> Network:
    """A trained network, from the folder if it is there."""
    task = RECALL["denoise"]
    torch.manual_seed(0)
    network = Network(subject.build(task.symbols + 2, HIDDEN), HIDDEN, task.symbols + 1, each_step=True)
    path = folder / f"{subject.name.replace('/', '-')}-{length}.pt"
    if path.exists():
        network.load_state_dict(torch.load(path))
        for _ in range(UPDATES):
            told()
        return network
    optimiser, generator = torch.optim.Adam(network.parameters(), subject.rate), Generator().manual_seed(0)
    for _ in range(UPDATES):
        x, y, _ = task.batch(length, COPIED, BATCH, generator)
        loss = torch.nn.functional.cross_entropy(network(x)[0].flatten(0, 1), y.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        told()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), path)
    return network


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m perf.gradient", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    names = [subject.name for subject in SUBJECTS]
    parser.add_argument("--layers", nargs="+", default=names, choices=names, metavar="LAYER")
    parser.add_argument("--trained", type=int, default=50, help="T in training")
    parser.add_argument("--lengths", nargs="+", type=int, default=[400, 600, 800], metavar="T", help="of the gradients")
    parser.add_argument("--sequences", type=int, default=2, help="that a norm is the mean of")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and rnnkern")
    parser.add_argument("--keep", type=Path, default=record.ROOT / "build" / "gradient", help="of what has been learnt")
    record.add_output_arguments(parser)
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    device = torch.device("cpu")
    facts = record.facts(device, shlex.join(["python", "-m", "perf.gradient", *argv]))
    rows: list[Row] = []
    maps = {}
    shown, _, _ = drawn(SHOWN_LENGTH, 1)
    subjects = [subject for subject in SUBJECTS if subject.name in chosen.layers]
    with Progress("", len(subjects) * (UPDATES + len(chosen.lengths)), "update") as progress:
        for subject in subjects:
            progress.what = subject.name
            network = learnt(subject, chosen.trained, chosen.keep, progress.advance)
            for length in chosen.lengths:
                x, y, _ = drawn(length, chosen.sequences)
                right = accuracy(network, length)
                about = {"layer": subject.name, "trained": chosen.trained, "length": length, "accuracy": right}
                found = norms(network, x, y, COPIED).tolist()
                rows += [facts | about | {"t": t, "norm": significant(norm)} for t, norm in enumerate(found)]
                progress.advance()
            if hasattr(network.rnn, "attention_map"):
                maps[subject.name] = network.rnn.attention_map(shown)
    out = record.output(chosen, device)
    record.append(out.rows / "gradient.csv", rows)
    gradient_picture.draw(out.pictures / "gradient.png", rows, maps, shown)


def drawn(length: int, count: int) -> Batch:
    return RECALL["denoise"].batch(length, COPIED, count, Generator().manual_seed(-1))


@torch.no_grad()
def accuracy(network: Network, length: int) -> float:
    x, y, _ = drawn(length, 50)
    return significant((network(x)[0][-COPIED:].argmax(-1) == y[-COPIED:]).double().mean().item())


if __name__ == "__main__":
    main(sys.argv[1:])
