"""Measures a program in several ways: as its authors wrote it, and with its recurrent layers by rnnkern."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from perf import record
from perf.progress import Progress
from perf.record import Row

RECURRENT, ENVIRONMENT = PARTS = ("recurrent", "environment")
"""Parts of the time: the recurrent layers, forward and backward, and the steps of an agent's environments."""


class Clock:
    """Times one run of a program, and the parts of it that are watched."""

    def __init__(self) -> None:
        self.whole, self.parts = math.nan, dict.fromkeys(PARTS, 0.0)
        self.began, self.ended = math.inf, -math.inf  # of the recurrent layers in the present backward pass

    def watch(self, owner: Any, name: str, parameters: Iterable[Tensor] = (), part: str = RECURRENT) -> None:
        """Counts a function or method of ``owner``, and its backward pass, as this part. That pass begins with the
        gradient of a result, and ends with that of an argument or of ``parameters``, which the function also uses."""
        function = getattr(owner, name)

        def begin(gradient: Tensor) -> None:
            self.began = min(self.began, time.perf_counter())

        def end(gradient: Tensor) -> None:
            self.ended = time.perf_counter()

        def hook(tensors: Any, called: Callable) -> None:
            for tensor in tree_leaves(tensors) if torch.is_grad_enabled() else ():
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.register_hook(called)

        @functools.wraps(function)
        def watched(*args, **kwargs):
            hook((args, kwargs), end)
            began = time.perf_counter()
            result = function(*args, **kwargs)
            self.parts[part] += time.perf_counter() - began
            hook(result, begin)
            return result

        hook(list(parameters), end)
        setattr(owner, name, watched)

    def run(self, function: Callable) -> Any:
        """Calls a function, whose time is the whole."""
        backward = torch.Tensor.backward

        def watched(*args, **kwargs):
            self.began, self.ended = math.inf, -math.inf
            backward(*args, **kwargs)
            self.parts[RECURRENT] += max(0.0, self.ended - self.began)

        torch.Tensor.backward = watched
        began = time.perf_counter()
        try:
            return function()
        finally:
            self.whole = time.perf_counter() - began
            torch.Tensor.backward = backward


class Case(NamedTuple):
    """One thing that a program does, and the ways to do it, which all give the same tensors or numbers."""

    program: str
    name: str
    ways: dict[str, Callable[[Clock], Sequence]]  # the published one first; each runs once and returns its results
    count: int  # units of work in a run
    unit: str
    tolerance: float  # largest difference between results, as a part of the largest result
    expected: Callable[[], Sequence] | None = None  # the right results, if not those of the published way
    threads: int = 2


def difference(results: Sequence, expected: Sequence) -> float:
    """The largest difference in any result, as a part of the largest expected value of that result."""

    def relative(own: Any, right: Any) -> float:
        own, right = (torch.as_tensor(x).double() for x in (own, right))
        return float((own - right).abs().max() / right.abs().max().clamp(min=torch.finfo(torch.float32).tiny))

    return max(itertools.starmap(relative, zip(*map(tree_leaves, (results, expected)), strict=True)))


def measured(case: Case, repeats: int, progress: Progress) -> list[Row]:
    """A row for each way: medians over rounds in which the ways take turns.

    Raises:
        RuntimeError: a way gave other results than expected.
    """
    torch.set_num_threads(case.threads)
    clocks: dict[str, list[Clock]] = {way: [] for way in case.ways}
    differences = dict.fromkeys(case.ways, 0.0)
    expected = case.expected() if case.expected else None
    published = next(iter(case.ways))
    for way in [*clocks] * repeats:
        clock = Clock()
        results = case.ways[way](clock)
        expected = results if expected is None else expected
        clocks[way].append(clock)
        differences[way] = max(differences[way], difference(results, expected))
        if way != published and not differences[way] <= case.tolerance:
            found = f"{differences[way]:.1e}, which is more than {case.tolerance:.1e}"
            raise RuntimeError(f"{case.program}, {case.name}: the results of {way} differ by {found}")
        progress.advance()
    facts = record.facts(torch.device("cpu"), "python -m perf.programs")
    labels = {"program": case.program, "case": case.name, "count": case.count, "unit": case.unit}
    rows = []
    for way, own in clocks.items():
        ratios = [first.whole / clock.whole for first, clock in zip(clocks[published], own, strict=True)]
        figures = {"seconds": statistics.median(clock.whole for clock in own), "ratio_50": statistics.median(ratios)}
        figures |= {f"of_{part}": statistics.median(clock.parts[part] / clock.whole for clock in own) for part in PARTS}
        figures |= {"difference": differences[way]}
        rows.append(facts | labels | {"way": way} | {name: record.significant(x) for name, x in figures.items()})
    return rows
