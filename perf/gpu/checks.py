"""Compares a call on a GPU with the reference; or, in a rehearsal, starts its kernels on a stand-in for the driver."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from perf import harness
from perf.gpu import recurrences
from perf.harness import OURS, Problem, Values
from rnnkern.testing import assert_close_over_draws

DRAWS = 4
"""Draws of a small call, whose results are compared together."""
FEW = 1000
"""Number of elements up to which a result is small."""
DIRECTIONS = {"forward": "forward", "backward": "forward+backward"}


class Place(NamedTuple):
    """Where jobs run."""

    device: torch.device
    folder: Path  # of the CSVs
    command: str
    counts: Callable[[], Mapping[str, int]]  # how often each kernel was started
    rehearses: bool = False  # on a stand-in for the driver: kernels start and compute nothing
    details: bool = False  # says of each result how wrong it is, and where

    def kernels(self, before: Mapping[str, int]) -> set[str]:
        """Names of the kernels that were started since the counts ``before``."""
        return {name for name, count in self.counts().items() if "/cuda/" in name and count > before.get(name, 0)}


Job = Callable[[Place], str]
Builder = Callable[[torch.device, bool, int], Problem]
"""Function of the device, whether only to rehearse, and a seed."""


class NotStarted(RuntimeError):  # noqa: N818
    """Another kernel ran than the one that was wanted."""


class Check(NamedTuple):
    """Compares one direction of a call with the reference."""

    build: Builder
    direction: str
    kernel: str = ""  # the only one that may run; empty: as the plan chooses
    tf32: bool = False
    kinked: bool = False  # rounding may decide the side of a kink, so one of two draws may be wrong
    alone: bool = False  # without the reference, for a few steps

    def __call__(self, place: Place) -> str:
        before = place.counts()
        with recurrences.tf32(self.tf32), recurrences.only(self.kernel.removesuffix("_tf32")):
            if place.rehearses or self.alone:
                words = self.rehearse(place)
            else:
                words = self.compare(place)
        ran = place.kernels(before)
        if self.kernel and not any(name.endswith(f"/{self.kernel}") for name in ran):
            raise NotStarted(f"the plan does not choose it, but {', '.join(sorted(ran)) or 'no CUDA kernel'}")
        return words

    def call(self, problem: Problem) -> Values:
        return problem.calls[DIRECTIONS[self.direction]][OURS]()

    def rehearse(self, place: Place) -> str:
        before = place.counts()
        self.call(self.build(place.device, True, 0))
        return f"starts {len(place.kernels(before))} kernels"

    def compare(self, place: Place) -> str:
        """
        Raises:
            AssertionError: a result is wrong; the message has its error as a multiple of plain PyTorch's.
        """
        draws: dict[str, list[tuple[Tensor, ...]]] = {}
        for seed in range(DRAWS):
            problem = self.build(place.device, False, seed)
            found, naive, truth = self.call(problem), problem.naive(), problem.truth()
            large = max(value.numel() for value in found.values()) > FEW
            if large:
                draws.clear()
            for name, value in found.items():
                draws.setdefault(name, []).append((value, naive[name], truth[name]))
            wrong = {name: said for name, each in draws.items() if (said := fault(each, name))}
            if large and not (wrong and self.kinked and seed == 0):
                break
        ratio = max(error(each) for name, each in draws.items() if not wrong or name in wrong)
        if not wrong:
            return f"agrees, {ratio:.2g} of naive"
        told = [f"{said} {worst(draws[name][-1])}" for name, said in wrong.items()]
        raise AssertionError(f"wrong, {ratio:.3g} times naive: {'; '.join(told if place.details else told[:1])}")


def fault(draws: Sequence[tuple[Tensor, ...]], name: str) -> str:
    """What is wrong with a result, or an empty text."""
    try:
        if draws[0][0].dtype == torch.float64:  # the truth has the same precision
            torch.testing.assert_close(*draws[0][::2], rtol=1e-10, atol=1e-10, msg=lambda said: f"{name}: {said}")
        elif draws[0][0].numel() <= FEW:
            assert_close_over_draws([{name: each} for each in draws])
        else:
            harness.assert_ours(*draws[0], name)
    except (AssertionError, ValueError) as error:  # ValueError: where both others are zero
        return str(error)
    return ""


def error(draws: Sequence[tuple[Tensor, ...]]) -> float:
    """The error of a result, as a multiple of plain PyTorch's."""
    if any(value.shape != true.shape for value, _, true in draws):
        return math.inf
    actual, naive, truth = (
        torch.cat([x.detach().flatten() for x in part]).double() for part in zip(*draws, strict=True)
    )
    if truth.numel() == 0:
        return 0.0
    rounding = torch.finfo(draws[0][0].dtype).eps * truth.abs().max()
    rms = [(x - truth).square().mean().sqrt() for x in (actual, naive)]
    return (rms[0] / torch.maximum(rms[1], rounding).clamp_min(1e-300)).item()


def worst(draw: tuple[Tensor, ...]) -> str:
    """Where a result is most wrong."""
    actual, _, truth = (x.detach().double() for x in draw)
    if actual.shape != truth.shape:
        return ""
    at = (actual - truth).abs().nan_to_num(torch.inf).flatten().argmax().item()
    index = [int(i) for i in torch.unravel_index(torch.tensor(at), actual.shape)]
    return f"(at {index} of {[*actual.shape]}: {actual.flatten()[at]:.5g}, not {truth.flatten()[at]:.5g})"
