"""Times calls that compute the same values: first checks their results, then runs them in turns until their ratios are
steady.

In each round every provider has one turn, a block of consecutive calls. The first call of a block is not timed, because
it finds the caches and the heap as the previous provider left them; the others find what the provider itself leaves, as
in a training loop. The order of providers alternates between rounds, and ratios are taken within a round, so that other
load on the machine affects all providers alike. A provider with a wrong result is not timed.

A ratio is *steady* after at least ``ROUNDS`` rounds if its quartiles are within ``SPREAD`` of the median. A case is
measured until all of its ratios are steady or its time is over. The rows say which ratios are not steady, and
``perf.tables`` omits those.
"""

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from perf import record
from perf.progress import Progress
from perf.record import OURS, Row, significant
from rnnkern.testing import assert_close, peak_bytes

QUANTILES = (25, 50, 75)
ROUNDS, SPREAD = 15, 0.1
"""Criteria of a steady ratio: the minimum number of rounds, and the largest relative distance of the quartiles from the
median."""
DRAWS = 4
BASELINE = "baseline"
JUDGED = 2**18
"""Largest number of elements of a GPU result that are checked for closeness, because the check runs on the CPU."""

Values = Mapping[str, Tensor]
Call = Callable[[], Values]


class WrongResult(AssertionError):  # noqa: N818, as WrongResult reads in a traceback
    """A call to be timed returned something other than the reference."""


class NoKernel(ValueError):  # noqa: N818
    """The reference would run, so there is nothing to measure."""


class Problem(NamedTuple):
    """Calls on the same inputs, ready to run. Each returns all its results by name."""

    calls: dict[str, dict[str, Call]]  # direction -> provider -> call; providers are OURS, "OURS, variant" and peers
    baselines: dict[str, Callable[[], None]]  # direction -> reference work to which all providers are compared
    naive: Call  # the reference in the timed dtype
    truth: Call  # the reference in float64, from the same inputs
    baseline: str = "GEMM"  # name of the baselines
    unlike: Mapping[str, dict[str, Call]] = {}  # like calls: other work of the same size, timed but not compared
    moving: Mapping[str, float] = {}  # direction -> seconds to move inputs and outputs through memory once
    columns: Callable[[str], Row] = lambda provider: {}  # additional columns of a provider's rows
    factors: Mapping[str, float] = {}  # result -> error allowed instead of rnnkern.testing.FACTORS
    absent: Mapping[str, str] = {}  # missing providers, with the reason
    views: Mapping[str, Callable[[Values], Values]] = {}  # provider -> conversion of its values to the common layout


def labels(op: str, case: str, cell: str, sizes: Sequence[int], dtype: str) -> dict[str, str]:
    return {"op": op, "case": case, "cell": cell, "shape": "x".join(map(str, sizes)), "dtype": dtype}


class Case(NamedTuple):
    labels: dict[str, str]  # made by labels()
    build: Callable[[int], Problem]  # function of a seed
    proof: Callable[[int], Problem] | None = None  # a smaller problem to check instead of the timed one
    kinked: bool = False  # rounding may decide the side of a kink, or which slot is chosen


class Effort(NamedTuple):
    """Time and rounds for each direction of a case."""

    seconds: float = 5.0  # time limit
    least: int = ROUNDS  # minimum number of rounds, even beyond the time limit
    most: int = 400
    block: float = 2e-2  # seconds of timed calls per turn


def measure(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Checks and times a case.

    Returns:
        One row per direction and provider. ``ms`` is the provider's time per call and ``ratio`` that time over
        rnnkern's in the same round, each with quartiles. ``steady`` says whether the ratio is steady, or in rnnkern's
        own row whether its time over the baseline's is. ``over_baseline`` is the median of the provider's time over the
        baseline's in the same round. ``peak_bytes`` is as in :func:`rnnkern.testing.peak_bytes`.

    Raises:
        WrongResult: a provider's result differs from the reference's; the message names the provider and the error.
        NoKernel: from the case.
    """
    return timed(case, checked(case), device, effort)


def timed(case: Case, problem: Problem, device: torch.device, effort: Effort) -> list[Row]:
    """Times a problem that :func:`checked` accepted; see :func:`measure`."""
    rows = []
    for direction, calls in problem.calls.items():
        calls = calls | problem.unlike.get(direction, {})
        peaks = {provider: peak_bytes(call) for provider, call in calls.items()}
        times = interleave({**calls, BASELINE: problem.baselines[direction]}, device, effort, all_steady)
        baseline = [max(t, problem.moving.get(direction, 0.0)) for t in times.pop(BASELINE)]
        for provider, mine in times.items():
            ratio, over = ratios(mine, times[OURS]), ratios(mine, baseline)
            rows.append(
                case.labels
                | {"direction": direction, "provider": provider, "rounds": len(mine)}
                | {"steady": steady(over if provider == OURS else ratio)}
                | quantiles("ms", [1e3 * t for t in mine])
                | quantiles("ratio", ratio)
                | {"baseline": problem.baseline, "baseline_ms": significant(1e3 * statistics.median(baseline))}
                | {"over_baseline": significant(statistics.median(over)), "peak_bytes": peaks[provider]}
                | problem.columns(provider)
            )
    return rows


def ratios(mine: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(mine, other, strict=True)]


def steady(found: Sequence[float]) -> bool:
    """Whether a ratio with these values, one per round, is steady enough to be published."""
    if len(found) < ROUNDS:
        return False
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
    return low >= (1 - SPREAD) * middle and high <= (1 + SPREAD) * middle


def all_steady(times: Mapping[str, Sequence[float]]) -> bool:
    return all(steady(ratios(mine, times[OURS])) for name, mine in times.items() if name != OURS)


def checked(case: Case) -> Problem:
    """Builds a problem, runs all its calls and checks their results.

    In a case with a kink (such as relu at 0), rounding can move one correct unit in ten million to the other side, and
    the largest error then says nothing about the other units. Such a case may therefore fail for one draw of the inputs
    if it passes for all others. Other cases must always pass.

    Raises:
        WrongResult: the message names the case and the error of the last draw that failed.
    """
    wrong = None
    for seed in range(DRAWS):
        problem = (case.proof or case.build)(seed)
        try:
            compare(problem)
        except AssertionError as error:
            if wrong is not None or not case.kinked:
                raise WrongResult(f"{' '.join(case.labels.values())}: {error}") from error
            wrong = error
        else:
            if wrong is None:
                break
    return problem if case.proof is None else case.build(seed)


def compare(problem: Problem) -> None:
    """Raises AssertionError if a call's result differs from the reference's."""
    naive, truth = problem.naive(), problem.truth()
    for direction, calls in problem.calls.items():
        for provider, call in calls.items():
            for name, value in problem.views.get(provider, dict)(call()).items():
                compared = value, naive[name], truth[name], f"{provider}, {direction}: {name}"
                if provider.split(",")[0] == OURS:
                    assert_ours(*compared, problem.factors.get(name))
                else:
                    assert_same(*compared)


def assert_ours(actual: Tensor, naive: Tensor, truth: Tensor, name: str, factor: float | None = None) -> None:
    """Applies :func:`rnnkern.testing.assert_close`; for a large result on a GPU to evenly spaced elements, with a wide
    bound for all of them."""
    if actual.is_cuda and actual.numel() > JUDGED:
        assert_same(actual, naive, truth, name)
        actual, naive, truth = (thinned(x) for x in (actual, naive, truth))
    assert_close(actual, naive, truth, name, factor)


def thinned(x: Tensor) -> Tensor:
    """At most ``JUDGED`` elements at an odd distance, so that no column of a matrix is skipped."""
    return x.flatten()[:: math.ceil(x.numel() / JUDGED) | 1]


def assert_same(actual: Tensor, naive: Tensor, truth: Tensor, name: str) -> None:
    """Checks a peer with a wide bound: its rounding may differ (oneDNN's bias gradients would fail the check for
    rnnkern; their sums have another order), but it must compute the same values, as far as plain PyTorch does."""
    assert actual.shape == truth.shape, f"{name}: shape {actual.shape}, wanted {truth.shape}"
    error, size = (actual - truth).norm().item(), truth.norm().item()
    bound = max(torch.finfo(actual.dtype).eps ** (1 / 3) * size, 2 * (naive - truth).norm().item())  # size may be 0
    assert error <= bound, f"{name}: error {error:.3g} exceeds {bound:.3g}, for a norm of {size:.3g}"


def interleave(
    calls: Mapping[str, Callable],
    device: torch.device,
    effort: Effort,
    enough: Callable[[Mapping[str, Sequence[float]]], bool] = lambda times: False,
) -> dict[str, list[float]]:
    """Seconds per call in each round, in alternating order. Rounds end when ``enough`` accepts the measurements so
    far."""
    once = {name: seconds(call, device) for name, call in calls.items()}
    repeats = {name: math.ceil(min(effort.block / max(t, 1e-9), 1000)) or 1 for name, t in once.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    collects, begun = gc.isenabled(), time.monotonic()
    gc.collect()
    gc.disable()
    try:
        for k in itertools.count(1):
            for name in calls if k % 2 else reversed(calls):
                times[name].append(seconds(calls[name], device, repeats[name]))
            if k >= effort.least and (k >= effort.most or time.monotonic() - begun > effort.seconds or enough(times)):
                return times
    finally:
        if collects:
            gc.enable()


def seconds(call: Callable, device: torch.device, repeats: int = 1) -> float:
    """Seconds of one call in a block of ``repeats`` calls after one that is not timed: on a CPU the median of the
    clock, on a GPU the mean of CUDA events."""
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / repeats
    found = []
    for _ in range(repeats):
        begun = clock()
        call()
        found.append(clock() - begun)
    return statistics.median(found)


def clock() -> float:
    """Times calls on a CPU. ``time.process_time`` may replace it for calls on one thread of a busy machine."""
    return time.perf_counter()


def copy_rate(device: torch.device) -> float:
    """Bytes read and written per second by a copy that does not fit into a cache."""
    source = torch.rand(2**30 if device.type == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    times = interleave({"copy": lambda: target.copy_(source)}, device, Effort(0.1, 5, 20))
    return 2 * source.nbytes / statistics.median(times["copy"])


def quantiles(name: str, values: Sequence[float]) -> Row:
    found = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor(QUANTILES, dtype=torch.float64) / 100)
    return {f"{name}_{q}": significant(x) for q, x in zip(QUANTILES, found.tolist(), strict=True)}


# ---- a run over many cases


class Outcome(NamedTuple):
    rows: list[Row]
    refused: list[str]  # cases that failed or returned wrong results
    left_out: list[tuple[str, str]]  # cases without kernel or time, missing providers; and why

    def add(self, more: "Outcome") -> None:
        for mine, its in zip(self, more, strict=True):
            mine.extend(its)

    def settle(self) -> None:
        """Prints what was left out.

        Raises:
            WrongResult: names every failed case.
            NoKernel: no case was measured.
        """
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left_out:
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            print(f"left out, {reason}: {'; '.join(names)}")
        if self.refused:
            raise WrongResult("\n".join(["no speed for a wrong result:", *self.refused]))
        if self.left_out and not self.rows:
            raise NoKernel("; ".join(reasons))


def attempt(
    cases: Sequence[Case],
    path: Path | None,
    device: torch.device,
    command: str,
    effort: Effort,
    deadline: float = math.inf,
    turn: Callable[[], None] = lambda: None,
) -> Outcome:
    """Measures cases and appends the rows of each to the CSV at ``path`` immediately.

    Args:
        cases, path, device, command, effort: what to measure and how; without a path nothing is written.
        deadline: a time of ``time.monotonic``; cases that would begin later are left out.
        turn: called before a checked case is timed; returns when it may begin.
    """
    facts, outcome = record.facts(device, command), Outcome([], [], [])
    for case in shown(cases):
        name = " ".join(case.labels.values())
        if time.monotonic() > deadline:
            outcome.left_out.append((name, "the time was up"))
            continue
        try:
            problem = checked(case)
            turn()
            rows = [facts | row for row in timed(case, problem, device, effort)]
        except NoKernel as error:
            outcome.left_out.append((name, str(error)))
        except WrongResult as error:
            outcome.refused.append(str(error))
        except RuntimeError as error:
            outcome.refused.append(f"{name}: {failure(error, device)}")
        else:
            if path is not None:
                record.append(path, rows)
            outcome.rows.extend(rows)
            outcome.left_out.extend((f"{name}, {provider}", why) for provider, why in problem.absent.items())
    return outcome


def failure(error: RuntimeError, device: torch.device) -> str:
    """The message of a failed call if the next case may still work. Raises the error on a CPU, or if the device is
    lost."""
    if device.type != "cuda":
        raise error
    torch.cuda.synchronize(device)
    return f"{type(error).__name__}: {error}"


def shown(cases: Sequence[Case]) -> Iterator[Case]:
    """Iterates over the cases and shows the name of the current one."""
    with Progress("", len(cases), "case") as progress:
        for case in cases:
            progress.what = " ".join(case.labels.values())
            yield case
            progress.advance()


def run(cases: Sequence[Case], path: Path | None, device: torch.device, command: str, effort: Effort) -> list[Row]:
    """Like :func:`attempt`; also prints the rows.

    Raises:
        WrongResult: after all cases have run; names every failed case.
    """
    outcome = attempt(cases, path, device, command, effort)
    if outcome.rows:
        print(record.table(comparisons(outcome.rows)))
    outcome.settle()
    return outcome.rows


def comparisons(rows: Sequence[Row]) -> list[Row]:
    """Rows of the printed table: one per peer, with rnnkern's own figures."""
    sames = ("case", "cell", "shape", "direction")
    ours = {tuple(row[name] for name in sames): row for row in rows if row["provider"] == OURS}
    lines = []
    for row in rows:
        if row["provider"] != OURS:
            mine = ours[tuple(row[name] for name in sames)]
            lines.append(
                {name: row[name] for name in sames}
                | {"ms": mine["ms_50"], "peer": row["provider"], "peer ms": row["ms_50"]}
                | {"times faster": row["ratio_50"], "25 %": row["ratio_25"], "75 %": row["ratio_75"]}
                | {"steady": row["steady"]}
                | {"over baseline": mine["over_baseline"], "peer's": row["over_baseline"]}
                | {"MB": significant(mine["peak_bytes"] / 1e6), "peer MB": significant(row["peak_bytes"] / 1e6)}
            )
    return lines
