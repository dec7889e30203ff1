"""Training tasks: their inputs, targets, losses and metrics."""

import functools
import itertools
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from perf import datasets, polynomial
from perf.datasets import Images, Text


class Batch(NamedTuple):
    x: Tensor  # (T, B, I)
    y: Tensor  # targets
    carried: bool = False  # whether the batch continues the sequences of the previous one

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.x.to(device), self.y.to(device), self.carried)


class Task(NamedTuple):
    """A task that is ready for training. To add a task, write a function that builds it and add a row to ``TASKS``."""

    inputs: int  # I
    outputs: int
    each_step: bool  # predictions at each step, or after the last one
    training: Callable[[Generator], Iterator[Batch]]  # infinite
    held_out: Callable[[], Iterable[Batch]]
    loss: Callable[[Tensor, Tensor], Tensor]  # function of predictions and y
    score: Callable[[Tensor, Tensor], Tensor]  # score of each prediction; the metric is their mean on held-out data
    metric: str
    constant: float  # the metric of a constant prediction on held-out data
    length: int  # T, or the length of a chunk if the state is carried over
    data: str = "generated"


class Settings(NamedTuple):
    """Hyperparameters of a training."""

    length: int | None  # T; None if the data determine it
    batch: int  # B
    hidden: int  # H
    optimiser: str
    rate: float
    clip: float  # maximum norm of the gradient
    updates: int
    held_out: int | None  # number of held-out sequences or characters; None for all


Build = Callable[[Settings, str, Path | None], Task]
"""Function of the settings, the held-out part ("valid" or "test") and the folder of the data."""


def pieces(x: Tensor, y: Tensor) -> Iterator[Batch]:
    """Splits sequences (T, N, I) and their targets, (N,) or (T, N, ...), into batches."""
    if y.dim() == 1:
        return map(Batch, x.split(500, dim=1), y.split(500))
    return map(Batch, x.split(100, dim=1), y.split(100, dim=1))


HELD_OUT_SEEDS = {"valid": -2, "test": -1}
"""Seeds of held-out data; seeds of trainings are not negative."""


def generated(
    draw: Callable[[int, int, Generator], Batch], settings: Settings, part: str
) -> tuple[Callable[[Generator], Iterator[Batch]], Tensor, Tensor]:
    """For a task whose sequences are drawn by ``draw(T, B, generator)``: the training batches, and x and y of the
    held-out data."""

    def training(generator: Generator) -> Iterator[Batch]:
        while True:
            yield draw(settings.length, settings.batch, generator)

    x, y, _ = draw(settings.length, settings.held_out, Generator().manual_seed(HELD_OUT_SEEDS[part]))
    return training, x, y


# ---- adding problem


def adding(settings: Settings, part: str, folder: Path | None) -> Task:
    """Adding problem (Hochreiter and Schmidhuber 1997): x has a number in [0, 1] and a mark; one number in each half of
    the sequence is marked, and y is their sum. The constant prediction 1 has mean squared error 1/6.

    Raises:
        ValueError: T < 2.
    """
    if settings.length < 2:
        raise ValueError(f"adding: the length must be at least 2, one step for each number, got {settings.length}")
    training, x, y = generated(sums, settings, part)
    return Task(
        inputs=2,
        outputs=1,
        each_step=False,
        training=training,
        held_out=functools.partial(pieces, x, y),
        loss=mean_squared_error,
        score=squared_error,
        metric="MSE",
        constant=(y - 1).square().mean().item(),
        length=settings.length,
    )


def sums(length: int, batch: int, generator: Generator) -> Batch:
    half = length // 2
    first = torch.randint(half, (1, batch), generator=generator)
    second = torch.randint(half, length, (1, batch), generator=generator)
    numbers = torch.rand(length, batch, generator=generator)
    marks = torch.zeros(length, batch).scatter_(0, torch.cat([first, second]), 1)
    return Batch(torch.stack([numbers, marks], -1), (numbers * marks).sum(0))


# ---- copy memory

SYMBOLS, COPIED = 8, 10


def copying(settings: Settings, part: str, folder: Path | None) -> Task:
    """Copy memory (Hochreiter and Schmidhuber 1997): ten of eight symbols, T - 1 blanks, a mark and ten blanks. The
    target is blank except in the last ten steps, in which the symbols must be repeated. Without a memory the loss is 10
    ln 8 / (T + 20).

    Raises:
        ValueError: T < 1.
    """
    if settings.length < 1:
        raise ValueError(f"copy: the length must be at least 1, got {settings.length}")
    training, x, y = generated(copies, settings, part)
    return Task(
        inputs=SYMBOLS + 2,
        outputs=SYMBOLS + 1,
        each_step=True,
        training=training,
        held_out=functools.partial(pieces, x, y),
        loss=cross_entropy,
        score=nats,
        metric="cross entropy",
        constant=COPIED * math.log(SYMBOLS) / (settings.length + 2 * COPIED),
        length=settings.length,
    )


def copies(length: int, batch: int, generator: Generator) -> Batch:
    """x one-hot (T + 20, B, 10), where 0 is a blank, 1 to 8 are the symbols and 9 is the mark; y (T + 20, B)."""
    symbols = torch.randint(1, SYMBOLS + 1, (COPIED, batch), generator=generator)
    x, y = torch.zeros(2, length + 2 * COPIED, batch, dtype=torch.long)
    x[:COPIED], x[COPIED + length - 1], y[-COPIED:] = symbols, SYMBOLS + 1, symbols
    return Batch(F.one_hot(x, SYMBOLS + 2).float(), y)


# ---- polynomially decaying memory


def polynomial_memory(settings: Settings, part: str, folder: Path | None) -> Task:
    """A convolution of white noise with (1 + t)^-1.1 (Wang, Li and Li 2024, appendix D). The error of the constant
    prediction 0 is the variance of the targets.

    Raises:
        ValueError: T < 1.
    """
    if settings.length < 1:
        raise ValueError(f"polynomial: the length must be at least 1, got {settings.length}")
    training, x, y = generated(lambda *sizes: Batch(*polynomial.convolutions(*sizes)), settings, part)
    return Task(
        inputs=1,
        outputs=1,
        each_step=True,
        training=training,
        held_out=functools.partial(pieces, x, y),
        loss=mean_squared_error,
        score=squared_error,
        metric="MSE",
        constant=y.square().mean().item(),
        length=settings.length,
    )


# ---- permuted images


def digits(settings: Settings, part: str, folder: Path | None) -> Task:
    """scikit-learn's handwritten digits, one pixel per step in a fixed permutation."""
    return classification(datasets.digits(), settings, part, "scikit-learn digits")


def mnist(settings: Settings, part: str, folder: Path | None) -> Task:
    """Permuted MNIST (Le et al. 2015)."""
    return classification(datasets.mnist(folder), settings, part, "MNIST")


def ordered_digits(settings: Settings, part: str, folder: Path | None) -> Task:
    """scikit-learn's handwritten digits, one pixel per step, row by row."""
    return classification(datasets.digits(seed=None), settings, part, "scikit-learn digits")


def ordered_mnist(settings: Settings, part: str, folder: Path | None) -> Task:
    """Sequential MNIST, row by row (Le et al. 2015)."""
    return classification(datasets.mnist(folder, seed=None), settings, part, "MNIST")


def classification(data: Images, settings: Settings, part: str, about: str) -> Task:
    if part == "valid":
        data = data.validation()
    test_x, test_y = data.test_x[:, : settings.held_out], data.test_y[: settings.held_out]

    def training(generator: Generator) -> Iterator[Batch]:
        while True:
            for batch in torch.randperm(len(data.train_y), generator=generator).split(settings.batch):
                yield Batch(data.train_x[:, batch], data.train_y[batch])

    commonest = data.train_y.bincount().argmax()
    return Task(
        inputs=1,
        outputs=10,
        each_step=False,
        training=training,
        held_out=functools.partial(pieces, test_x, test_y),
        loss=F.cross_entropy,
        score=correct,
        metric="accuracy",
        constant=(test_y == commonest).double().mean().item(),
        length=len(data.train_x),
        data=about,
    )


# ---- character-level language models


def stdlib(settings: Settings, part: str, folder: Path | None) -> Task:
    """The sources of Python's standard library, as characters."""
    return language(datasets.stdlib(), settings, part, f"Python {platform.python_version()}")


def ptb(settings: Settings, part: str, folder: Path | None) -> Task:
    """The Penn Treebank as characters (Mikolov et al. 2012)."""
    return language(datasets.ptb(folder), settings, part, "Penn Treebank")


def language(text: Text, settings: Settings, part: str, about: str) -> Task:
    """Predicts the next character. The state is carried over from chunk to chunk, but gradients stop at the beginning
    of a chunk (truncated backpropagation through time)."""
    judged, symbols = getattr(text, part), len(text.symbols)
    cut = functools.partial(chunks, symbols=symbols, batch=settings.batch, length=settings.length)

    def training(generator: Generator) -> Iterator[Batch]:
        while True:
            start = int(torch.randint(len(text.train), (), generator=generator))
            yield from cut(text.train.roll(-start))

    def held_out() -> Iterable[Batch]:
        count = settings.held_out and math.ceil(settings.held_out / (settings.batch * settings.length))
        return itertools.islice(cut(judged), count)

    frequencies = text.train.bincount(minlength=symbols) + 1.0
    constant = -(frequencies / frequencies.sum()).log2()[judged.long()].mean().item()
    return Task(
        inputs=symbols,
        outputs=symbols,
        each_step=True,
        training=training,
        held_out=held_out,
        loss=cross_entropy,
        score=bits,
        metric="bits per character",
        constant=constant,
        length=settings.length,
        data=f"{about}, {len(text.train)} characters",
    )


def chunks(text: Tensor, symbols: int, batch: int, length: int) -> Iterator[Batch]:
    """Splits a text into ``batch`` parallel streams, one-hot, in chunks of ``length`` characters; y is shifted by one
    character.

    Raises:
        ValueError: the text has fewer than two characters per stream.
    """
    steps = (len(text) - 1) // batch
    if steps < 1:
        raise ValueError(f"a text for {batch} streams must have at least {batch + 1} characters, got {len(text)}")
    x, y = (text[k : k + steps * batch].view(batch, steps).T.long() for k in (0, 1))
    one_hot = torch.eye(symbols)
    for begin in range(0, steps, length):
        now = slice(begin, begin + length)
        yield Batch(one_hot[x[now]], y[now], carried=begin > 0)


# ---- losses and metrics


def squared_error(answers: Tensor, y: Tensor) -> Tensor:
    return (answers.squeeze(-1) - y).square()


def mean_squared_error(answers: Tensor, y: Tensor) -> Tensor:
    return squared_error(answers, y).mean()


def correct(answers: Tensor, y: Tensor) -> Tensor:
    return answers.argmax(-1) == y


def cross_entropy(answers: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(answers.flatten(0, 1), y.flatten())


def nats(answers: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(answers.flatten(0, 1), y.flatten(), reduction="none")


def bits(answers: Tensor, y: Tensor) -> Tensor:
    return nats(answers, y) / math.log(2)


def by_accuracy(task: Task) -> Task:
    """The task with the accuracy as its metric; ``constant`` is the share of the commonest target."""
    targets = torch.cat([batch.y.flatten() for batch in task.held_out()])
    constant = (targets == targets.mode().values).double().mean().item()
    return task._replace(score=correct, metric="accuracy", constant=constant)


# ---- the table


class Own(NamedTuple):
    """Hyperparameters of a model on a task, unless others are given on the command line."""

    rate: float
    orthogonal: float | None = None  # rate of orthogonal and unitary parameters; None: rate / 10
    delta: float = 0.0  # factor of the penalty on the moduli of a Schur form
    triangular_weight_decay: float = 0.0  # weight decay of its strict triangle T
    init: str | None = None  # initialization of the recurrent weight
    soft: float = 0.0  # factor of the penalty on V^T V - I for an unconstrained weight V

    def __str__(self) -> str:
        """The rate and all values that differ from their defaults."""
        shown = {
            "orthogonal": self.orthogonal,
            "delta": self.delta,
            "T decay": self.triangular_weight_decay,
            "init": self.init,
        }
        shown["soft"] = self.soft
        return ", ".join([str(self.rate), *(f"{name} {value}" for name, value in shown.items() if value)])


class Kind(NamedTuple):
    build: Build
    settings: Settings  # defaults
    files: str = ""  # files that the folder of the data must contain
    own: Mapping[str, Own] = MappingProxyType({})  # settings of individual models


CONTINUOUS = [f"rnnkern.ContinuousRNN{name}" for name in ("", "-inverse", "-exp", "-direct")]

TASKS = {
    "adding": Kind(adding, Settings(100, 50, 64, "Adam", 5e-3, 1.0, 2000, 1000)),
    "copy": Kind(
        copying,
        Settings(200, 10, 128, "RMSprop", 5e-4, 1.0, 600, 200),
        own={
            "rnnkern.ExpRNN": Own(1e-3, 1e-4, init="henaff"),
            "rnnkern.NonNormalRNN": Own(5e-4, 1e-6, 1e-4, 1e-6, "henaff"),
            "rnnkern.CayleyRNN": Own(1e-3, 1e-4),
            "rnnkern.LSTM-glorot": Own(5e-4),
            "rnnkern.RNN-glorot": Own(1e-3),
            "rnnkern.OrthogonalInitRNN": Own(2e-4),
            "rnnkern.OrthogonalInitRNN-soft": Own(2e-4, soft=1e-2),
            "rnnkern.HouseholderRNN": Own(1e-3, 1e-4, init="henaff"),
            "rnnkern.EURNN": Own(1e-3, 1e-4),
            "rnnkern.EURNN-butterfly": Own(1e-3, 1e-3),
            "rnnkern.SpectralRNN": Own(1e-3, 1e-4, init="henaff"),
            "rnnkern.GORU": Own(5e-3, 5e-4, init="henaff"),
            "rnnkern.UnitaryRNN": Own(1e-3, 1e-3),
            "rnnkern.UnitaryRNN-givens": Own(1e-3, 1e-3),
            "rnnkern.UnitaryRNN-free": Own(1e-3, 1e-4),
        },
    ),
    "polynomial": Kind(
        polynomial_memory,
        Settings(200, 50, 64, "Adam", 5e-3, 1.0, 600, 500),
        own=dict.fromkeys(CONTINUOUS, Own(1e-2)),
    ),
    "digits": Kind(
        digits,
        Settings(None, 100, 128, "Adam", 5e-3, 1.0, 450, None),
        own={
            "rnnkern.ExpRNN": Own(5e-3, init="cayley"),
            "rnnkern.NonNormalRNN": Own(5e-3, delta=0.15, triangular_weight_decay=1e-4, init="cayley"),
        }
        | dict.fromkeys(CONTINUOUS, Own(1e-2)),
    ),
    "stdlib": Kind(
        stdlib,
        Settings(100, 32, 128, "Adam", 1e-2, 1.0, 500, 100_000),
        own={
            "rnnkern.ExpRNN": Own(1e-2, init="cayley"),
            "rnnkern.NonNormalRNN": Own(1e-2, delta=1.0, triangular_weight_decay=1e-4, init="cayley"),
        },
    ),
    "mnist": Kind(
        mnist,
        Settings(None, 100, 512, "RMSprop", 5e-4, 1.0, 42_000, None),
        "the four IDX files, plain or .gz",
        own={
            "rnnkern.ExpRNN": Own(5e-4, 5e-5, init="cayley"),
            "rnnkern.NonNormalRNN": Own(1.5e-4, 1.5e-5, 0.15, 1e-4, "cayley"),
            "rnnkern.OrthogonalInitRNN": Own(5e-5),
            "rnnkern.LSTM-glorot": Own(5e-4),
            "rnnkern.RNN-glorot": Own(1e-4),
        },
    ),
    "ptb": Kind(
        ptb,
        Settings(150, 128, 1024, "RMSprop-0.9", 1e-3, 1.0, 26_000, None),
        "ptb.char.{train,valid,test}.txt",
        own={
            "rnnkern.ExpRNN": Own(5e-3, 1e-4, init="cayley"),
            "rnnkern.NonNormalRNN": Own(8e-4, 8e-5, 1.0, 1e-4, "cayley"),
            "rnnkern.LSTM": Own(8e-3),
            "rnnkern.LSTM-glorot": Own(8e-3),
            "rnnkern.RNN-glorot": Own(1e-5),
            "rnnkern.OrthogonalInitRNN": Own(1e-4),
        },
    ),
}
TASKS["ordered-digits"] = TASKS["digits"]._replace(build=ordered_digits)
TASKS["ordered-mnist"] = TASKS["mnist"]._replace(build=ordered_mnist)
