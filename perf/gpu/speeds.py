"""Checks and times a case on a GPU, or measures the memory of a layer, and appends the rows to a CSV."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from perf import harness, memory, record
from perf.gpu import recurrences
from perf.gpu.checks import Builder, Place
from perf.harness import OURS, Case, Effort
from perf.record import significant

EFFORT = Effort(seconds=0.25, least=3, most=20, block=1e-3)
REHEARSED_STEPS = 4
MEMORY_LENGTHS, MEMORY_SECONDS, MEMORY_BYTES = (100, 1000, 10_000), 0.5, 2e10


class Timing(NamedTuple):
    """Checks and times a case, and appends its rows to a CSV."""

    case: Callable[[torch.device], Case]
    name: str  # of the CSV
    rehearsal: Builder
    tf32: bool = False

    def __call__(self, place: Place) -> str:
        with recurrences.tf32(self.tf32):
            if place.rehearses:
                problem, before = self.rehearsal(place.device, True, 0), place.counts()
                for calls in problem.calls.values():
                    calls[OURS]()
                return f"starts {len(place.kernels(before))} kernels"
            facts = record.facts(place.device, place.command)
            rows = harness.measure(self.case(place.device), place.device, EFFORT)
        record.append(place.folder / f"gpu-{self.name}.csv", [facts | row for row in rows])
        return faster(rows)


def faster(rows: Sequence[record.Row]) -> str:
    """How many times faster than each peer, forward and with the backward pass; and milliseconds."""
    mine = [row for row in rows if row["provider"] == OURS]
    parts = [
        f"{' and '.join(str(row['ratio_50']) for row in rows if row['provider'] == peer)} times {peer}"
        for peer in dict.fromkeys(row["provider"] for row in rows if row["provider"] != OURS)
    ]
    kernel = mine[0].get("kernel", "").partition(": ")[2].partition(",")[0]
    return ", ".join([*parts, f"{' and '.join(str(row['ms_50']) for row in mine)} ms", *([kernel] if kernel else [])])


@functools.cache
def copy_rate(device: torch.device) -> float:
    return harness.copy_rate(device) if device.type == "cuda" else 1e9


def memory_of(name: str, place: Place) -> str:
    """Memory and time over T of one layer of perf.memory."""
    subjects = [subject for subject in memory.SUBJECTS if subject.name == name]
    if place.rehearses:
        memory.measured(subjects[0], 128, 4, REHEARSED_STEPS, place.device)
        return "starts kernels"
    facts = record.facts(place.device, place.command)
    rows = list(memory.lines(subjects, 128, 4, MEMORY_LENGTHS, place.device, MEMORY_SECONDS, MEMORY_BYTES))
    record.append(place.folder / "gpu-memory.csv", [facts | row for row in rows])
    last = rows[-1]
    return f"{significant(last['peak_bytes'] / 1e6)} MB and {significant(1e3 * last['seconds'])} ms at T = {last['T']}"
