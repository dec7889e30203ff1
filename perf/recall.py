"""Recall tasks: the network reads symbols and must repeat them after a mark, at any sequence length (Kerg 2022, ch. 4).

A sequence has K symbols and T + 2 K steps. The metric is the accuracy in the last K steps.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from perf.tasks import HELD_OUT_SEEDS, Batch, Task, correct, cross_entropy

AT_ONCE = 100
"""Number of sequences per evaluation batch."""


class Recall(NamedTuple):
    """A family of recall tasks, defined by where the symbols are placed."""

    symbols: int  # A, the number of symbols 1..A; 0 is a blank, A + 1 the mark
    places: Callable[[int, int, int, Generator], Tensor]  # (K, B): the steps of the symbols, increasing

    def batch(self, length: int, copied: int, count: int, generator: Generator) -> Batch:
        """x one-hot (T + 2 K, B, A + 2) and y (T + 2 K, B), which is blank except in the last K steps."""
        symbols = torch.randint(1, self.symbols + 1, (copied, count), generator=generator)
        x, y = torch.zeros(2, length + 2 * copied, count, dtype=torch.long)
        x.scatter_(0, self.places(length, copied, count, generator), symbols)
        x[length + copied - 1], y[length + copied :] = self.symbols + 1, symbols
        return Batch(F.one_hot(x, self.symbols + 2).float(), y)

    def task(self, length: int, copied: int, batch: int, held_out: int, part: str = "test") -> Task:
        def training(generator: Generator) -> Iterator[Batch]:
            while True:
                yield self.batch(length, copied, batch, generator)

        def measured() -> Iterable[Batch]:
            generator = Generator().manual_seed(HELD_OUT_SEEDS[part])
            return (self.batch(length, copied, n, generator) for n in pieces(held_out))

        return Task(
            inputs=self.symbols + 2,
            outputs=self.symbols + 1,
            each_step=True,
            training=training,
            held_out=measured,
            loss=cross_entropy,
            score=lambda answers, y: correct(answers[-copied:], y[-copied:]),
            metric="accuracy",
            constant=1 / self.symbols,
            length=length,
        )


def pieces(count: int) -> list[int]:
    whole, rest = divmod(count, AT_ONCE)
    return [AT_ONCE] * whole + [rest] * (rest > 0)


def at_the_start(length: int, copied: int, count: int, generator: Generator) -> Tensor:
    return torch.arange(copied).unsqueeze(1).expand(copied, count)


def anywhere(length: int, copied: int, count: int, generator: Generator) -> Tensor:
    """Random steps among the T + K - 1 before the mark."""
    shuffled = torch.rand(length + copied - 1, count, generator=generator).argsort(0)
    return shuffled[:copied].sort(0).values


RECALL = {"copy": Recall(8, at_the_start), "denoise": Recall(9, anywhere)}
