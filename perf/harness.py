"""Times calls that compute the same thing: checks them, warms up, then runs them in turns on the same machine state.

Each round runs every call once, in alternating order, so that whatever else the machine does hits all alike; ratios are
taken within a round and quoted by their quantiles. Nothing is timed whose result is wrong.
"""

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from perf import record
from perf.record import Row, significant
from rnnkern.testing import assert_close

OURS = "rnnkern"
QUANTILES = (20, 50, 80)
DRAWS = 4

Values = Mapping[str, Tensor]
Call = Callable[[], Values]


class WrongResult(AssertionError):  # noqa: N818, as WrongResult reads in a traceback
    """A call that was to be timed computes something else than the reference."""


class Problem(NamedTuple):
    """Calls on the same inputs, ready to run; each returns all that it computes, by name."""

    calls: dict[str, dict[str, Call]]  # direction -> provider -> call; OURS and its peers
    floors: dict[str, Callable[[], None]]  # direction -> the work that nobody can avoid
    naive: Call  # the reference in the dtype that is timed
    truth: Call  # the reference in float64, from the same inputs


class Case(NamedTuple):
    labels: dict[str, str]  # op, case, cell, shape, dtype
    build: Callable[[int], Problem]  # from a seed


class Effort(NamedTuple):
    """How long to measure: rounds fill ``seconds`` per direction, within bounds."""

    seconds: float = 2.0
    least: int = 7
    most: int = 200


def measure(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Checks and times a case.

    Returns:
        One row per direction and provider. ``ms`` is the provider's own time, ``ratio`` that time over rnnkern's in
        the same round, each with its 20 %, 50 % and 80 % quantiles; ``over_floor`` is the median of the provider's time
        over the floor's in the same round; ``peak_bytes`` is as in :func:`peak_bytes`.

    Raises:
        WrongResult: a provider's result is not the reference's; says which and by how much.
    """
    problem = checked(case)
    rows = []
    for direction, calls in problem.calls.items():
        peaks = {provider: peak_bytes(call, device) for provider, call in calls.items()}
        times = interleave({**calls, "floor": problem.floors[direction]}, device, effort)
        floor = times.pop("floor")
        for provider, mine in times.items():
            ratio = [a / b for a, b in zip(mine, times[OURS], strict=True)]
            over = statistics.median(a / b for a, b in zip(mine, floor, strict=True))
            rows.append(
                case.labels
                | {"direction": direction, "provider": provider, "rounds": len(mine)}
                | quantiles("ms", [1e3 * t for t in mine])
                | quantiles("ratio", ratio)
                | {"floor_ms": significant(1e3 * statistics.median(floor)), "over_floor": significant(over)}
                | {"peak_bytes": peaks[provider]}
            )
    return rows


def checked(case: Case) -> Problem:
    """Builds a problem whose calls have all been run and found right.

    A kink (relu at 0) puts one honest unit in ten million on its other side, where the largest error says nothing of
    the rest. Such luck does not last over a few draws of the inputs; a mistake does.
    """
    for seed in range(DRAWS):
        problem = case.build(seed)
        naive, truth = problem.naive(), problem.truth()
        try:
            for direction, calls in problem.calls.items():
                for provider, call in calls.items():
                    check = assert_close if provider == OURS else assert_same
                    for name, value in call().items():
                        check(value, naive[name], truth[name], f"{provider}, {direction}: {name}")
        except AssertionError as error:
            wrong = error
        else:
            return problem
    raise WrongResult(f"{' '.join(case.labels.values())}: {wrong}") from wrong


def assert_same(actual: Tensor, naive: Tensor, truth: Tensor, name: str) -> None:
    """A peer may round as it likes (oneDNN's bias gradients would fail our rule) but must compute the same thing."""
    error = ((actual - truth).norm() / truth.norm()).item()
    bound = torch.finfo(actual.dtype).eps ** 0.5
    assert error <= bound, f"{name}: relative error {error:.3g} exceeds {bound:.3g}"


def interleave(calls: Mapping[str, Callable], device: torch.device, effort: Effort) -> dict[str, list[float]]:
    """Seconds of each call in each round, ABBA."""

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def run(call: Callable) -> float:
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        return time.perf_counter() - start

    for _ in range(2):
        spent = sum(map(run, calls.values()))
    rounds = max(effort.least, min(effort.most, int(effort.seconds / spent)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for k in range(rounds):
            for name in calls if k % 2 == 0 else reversed(calls):
                times[name].append(run(calls[name]))
    finally:
        if collects:
            gc.enable()
    return times


def peak_bytes(call: Callable, device: torch.device) -> int:
    """The most memory that one call holds at once beyond what was held before it.

    All that goes through PyTorch's allocator: what operators allocate, oneDNN's and rnnkern's work space included.
    Exact and repeatable; stacks, code and the fragmentation of the heap are not in it.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler announces each of its runs
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        call()
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def quantiles(name: str, values: Sequence[float]) -> Row:
    found = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor(QUANTILES, dtype=torch.float64) / 100)
    return {f"{name}_{q}": significant(x) for q, x in zip(QUANTILES, found.tolist(), strict=True)}


# ---- a run over many cases


def arguments(description: str) -> argparse.ArgumentParser:
    """Those that every family's benchmark takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and rnnkern")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=Effort().seconds, help="of measuring per case and direction")
    parser.add_argument("--quick", action="store_true", help="a look: tiny shapes, few rounds, nothing is kept")
    return parser


def run(cases: Sequence[Case], path: Path | None, device: torch.device, command: str, effort: Effort) -> list[Row]:
    """Measures cases, appends each one's rows to the CSV at ``path`` as soon as they are there, and prints them all.

    Raises:
        WrongResult: after all other cases have run, names every case that was refused.
    """
    facts, rows, refused = record.facts(device, command), [], []
    with tqdm(cases, unit="case", disable=None) as bar:
        for case in bar:
            bar.set_postfix_str(" ".join(case.labels.values()))
            try:
                new = [facts | row for row in measure(case, device, effort)]
            except WrongResult as error:
                refused.append(str(error))
                continue
            if path is not None:
                record.append(path, new)
            rows += new
    if rows:
        print(record.table(comparisons(rows)), record.table(summary(rows)), sep="\n\n")
    if refused:
        raise WrongResult("\n".join(["no speed for a wrong result:", *refused]))
    return rows


def comparisons(rows: Sequence[Row]) -> list[Row]:
    """What the table shows: a line for each peer beside rnnkern's own figures."""
    sames = ("case", "cell", "shape", "direction")
    ours = {tuple(row[name] for name in sames): row for row in rows if row["provider"] == OURS}
    lines = []
    for row in rows:
        if row["provider"] != OURS:
            mine = ours[tuple(row[name] for name in sames)]
            lines.append(
                {name: row[name] for name in sames}
                | {
                    "ms": mine["ms_50"],
                    "peer": row["provider"],
                    "peer ms": row["ms_50"],
                    "times faster": row["ratio_50"],
                }
                | {"20 %": row["ratio_20"], "80 %": row["ratio_80"]}
                | {"over floor": mine["over_floor"], "peer's": row["over_floor"]}
                | {"MB": significant(mine["peak_bytes"] / 1e6), "peer MB": significant(row["peak_bytes"] / 1e6)}
            )
    return lines


def summary(rows: Sequence[Row]) -> list[Row]:
    """Over all shapes, how many times faster than each peer."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row["provider"] != OURS:
            key = tuple(row[name] for name in ("case", "cell", "direction", "provider"))
            groups.setdefault(key, []).append(row["ratio_50"])
    return [
        dict(zip(("case", "cell", "direction", "peer"), key, strict=True))
        | {
            "geometric mean": significant(statistics.geometric_mean(ratios)),
            "least": min(ratios),
            "shapes": len(ratios),
        }
        for key, ratios in groups.items()
    ]
