"""Measures the recurrence, relevancy attention, orthogonal weights and scans on a GPU; the third call of ``make gpu``
runs this in several stages, each within minutes.

``python -m perf.measure_gpu --help``. TF32 is disabled for all providers.
"""

import argparse
import contextlib
import functools
import importlib.util
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from perf import (
    flashrnn_peer,
    gather_attention,
    givens_recurrence,
    gpu_tables,
    harness,
    linear_scan,
    moment_filter,
    orthogonal,
    record,
    relevancy,
)
from perf import recurrence_gpu as cases
from perf.harness import Effort, NoKernel, Outcome
from perf.recurrence_gpu import Spec
from rnnkern.testing import peak_bytes

SECTIONS = ("memory", "short", "plain", "orthogonal", "relevancy", "scans", "variants", "flashrnn")
EFFORT = Effort(seconds=0.25, least=3, most=20, block=1e-3)
QUICK_EFFORT = Effort(seconds=0.0, least=3, most=3, block=1e-4)
QUICK_MEMORY_STEPS = (4, 8)
COMPILE_SECONDS = 120
TURN_SECONDS = 30
RELEVANCY_SECONDS = 40
"""Time for the section; a case takes about two seconds, because a loop in PyTorch launches about thirty kernels per
step, and as many in the backward pass."""
SCAN_SECONDS = 40
"""Time for the section; its loops are as slow."""


class Run(NamedTuple):
    device: torch.device
    folder: Path
    quick: bool
    deadline: float
    command: str

    @property
    def effort(self) -> Effort:
        return QUICK_EFFORT if self.quick else EFFORT

    def specs(self, specs: Sequence[Spec]) -> list[Spec]:
        found = [spec.small() for spec in specs] if self.quick else list(specs)
        if self.device.type == "cpu":  # the CPU kernels support no other
            found = [spec._replace(dtype="float32") for spec in found]
        return list(dict.fromkeys(found))

    def attempt(self, specs: Sequence[Spec], rate: float, **options) -> Outcome:
        todo = [cases.case(spec, self.device, rate) for spec in self.specs(specs)]
        path = self.folder / "recurrence.csv"
        return harness.attempt(todo, path, self.device, self.command, self.effort, self.deadline, **options)


# ---- torch.compile takes a minute per case: all cases compile at once in separate processes and are timed one by one


def one_short(run: Run, number: int, rate: float) -> None:
    def turn() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    outcome = run.attempt([cases.SHORT[number]], rate, turn=turn)
    with contextlib.suppress(NoKernel):  # printed, not an error
        outcome.settle()


def begin_short(options: Sequence[str], rate: float) -> list[subprocess.Popen]:
    command = [sys.executable, "-m", "perf.measure_gpu", *options, "--one-short"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": record.ROOT}
    return [subprocess.Popen([*command, str(k), str(rate)], **pipes) for k in range(len(cases.SHORT))]


def finish_short(processes: Sequence[subprocess.Popen], deadline: float) -> list[str]:
    """When all processes are ready, lets them measure one after the other; returns what failed."""
    failed, deadline = [], min(deadline, time.monotonic() + COMPILE_SECONDS)
    for process in processes:
        if select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
            process.stdout.readline()
        else:
            process.kill()
    for spec, process in zip(cases.SHORT, processes, strict=False):
        try:
            said, _ = process.communicate("go\n", timeout=TURN_SECONDS)
            print(said, end="")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        if process.returncode:
            name = " ".join(spec.labels.values())
            why = "took too long" if process.returncode < 0 else "failed, as said above"
            failed.append(f"{name}: its process {why}")
    return failed


# ---- memory


def memory(run: Run) -> Outcome:
    """Peak bytes of forward and backward over T."""
    facts, outcome = record.facts(run.device, run.command), Outcome([], [], [])
    for steps in QUICK_MEMORY_STEPS if run.quick else cases.MEMORY_STEPS:
        try:
            spec, calls = cases.memory_providers(steps, run.quick, run.device)
            for provider, call in calls.items():
                call()
                peak = peak_bytes(call)
                labels = spec.labels | {"direction": "forward+backward", "provider": provider}
                outcome.rows.append(facts | labels | {"steps": steps, "peak_bytes": peak})
        except NoKernel as error:
            outcome.left_out.append((f"memory, T = {steps}", str(error)))
        except RuntimeError as error:
            outcome.refused.append(f"memory, T = {steps}: {harness.failure(error, run.device)}")
    if outcome.rows:
        record.append(run.folder / "memory.csv", outcome.rows)
    return outcome


# ---- orthogonal weights


def weights(run: Run) -> Outcome:
    shapes = orthogonal.QUICK_SHAPES if run.quick else orthogonal.GPU_SHAPES
    todo = orthogonal.cases(shapes, 1.0, "float32", run.device)
    path = run.folder / "orthogonal.csv"
    return harness.attempt(todo, path, run.device, run.command, run.effort, run.deadline)


# ---- relevancy attention


def attention(run: Run) -> Outcome:
    shapes = relevancy.QUICK_SHAPES if run.quick else relevancy.GPU_SHAPES
    narrow = relevancy.QUICK_SHAPES if run.quick else relevancy.GPU_NARROW_SHAPES
    todo = relevancy.cases(relevancy.RELEVANCY_CELLS, shapes, "float32", run.device, relevancy.GPU_PEERS, True)
    for cell, peers in (("tanh", relevancy.GPU_PEERS), ("lstm", {})):  # plain PyTorch's LSTM is too inaccurate
        todo += relevancy.cases((cell,), narrow, "bfloat16", run.device, peers, True)
    path, deadline = run.folder / "relevancy.csv", min(run.deadline, time.monotonic() + RELEVANCY_SECONDS)
    return harness.attempt(todo, path, run.device, run.command, run.effort, deadline)


# ---- scans, layers of rotations, and attention to lists


def scans(run: Run) -> Outcome:
    outcome, deadline = Outcome([], [], []), min(run.deadline, time.monotonic() + SCAN_SECONDS)
    families = {
        "linear_scan": (linear_scan.cases, linear_scan.QUICK_SHAPES, linear_scan.GPU_SHAPES),
        "moment_filter": (moment_filter.cases, linear_scan.QUICK_SHAPES, linear_scan.GPU_SHAPES),
        "givens_recurrence": (
            givens_recurrence.cases,
            givens_recurrence.GPU_QUICK_SHAPES,
            givens_recurrence.GPU_SHAPES,
        ),
        "gather_attention": (gather_attention.cases, gather_attention.QUICK_SHAPES, gather_attention.SHAPES),
    }
    for name, (cases_of, quick, shapes) in families.items():
        todo = cases_of(quick if run.quick else shapes, "float32", run.device)
        outcome.add(harness.attempt(todo, run.folder / f"{name}.csv", run.device, run.command, run.effort, deadline))
    return outcome


# ---- all


def pictures(folder: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print("no pictures: matplotlib is absent")
        return
    from perf import picture_gpu  # imported here: measuring needs no matplotlib

    path = folder / "recurrence.csv"
    if path.exists():
        for dtype in dict.fromkeys(row["dtype"] for row in record.read(path) if row["case"] in ("dense", "heads")):
            picture_gpu.draw_steps(path, dtype)
    if (folder / "memory.csv").exists():
        picture_gpu.draw_memory(folder / "memory.csv")


def measure(run: Run, sections: Sequence[str], options: Sequence[str]) -> Outcome:
    outcome = Outcome([], [], [])
    add = outcome.add
    rate = harness.copy_rate(run.device)
    processes = begin_short(options, rate) if "short" in sections else []
    try:
        if "memory" in sections:
            add(memory(run))
        outcome.refused.extend(finish_short(processes, run.deadline))
    finally:
        for process in processes:
            process.kill()
    attempt = functools.partial(run.attempt, rate=rate)
    plain = run.specs(cases.PLAIN) if "plain" in sections else []
    first = cases.BATCHES[0]
    add(attempt([spec for spec in plain if spec.batch == first or run.quick]))
    if "orthogonal" in sections:
        add(weights(run))
    if "relevancy" in sections:
        add(attention(run))
    if "scans" in sections:
        add(scans(run))
    if "variants" in sections:
        add(attempt(cases.VARIANTS))
    add(attempt([spec for spec in plain if spec.batch != first and not run.quick]))
    pictures(run.folder)
    if "flashrnn" in sections:
        if flashrnn_peer.installed():
            add(attempt(cases.FLASHRNN))
        else:
            print("no comparison with FlashRNN: flashrnn is absent")
    return outcome


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder; default: the device's in perf/results")
    parser.add_argument(
        "--minutes", type=float, default=6.0, help="cases that would begin later are left out, and named"
    )
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: for a look, with --quick")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, few rounds; nothing is kept without --out")
    parser.add_argument("--one-short", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    chosen, since = parse(argv), record.now()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        sys.exit("perf.measure_gpu needs a CUDA device: PyTorch sees none")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = torch.device(chosen.device)
    quick = ["--quick"] if chosen.quick else []
    command = " ".join(["python -m perf.measure_gpu --device", chosen.device, *quick])  # without the folder
    with tempfile.TemporaryDirectory() as nowhere:
        folder = chosen.out or (Path(nowhere) if chosen.quick else record.folder(device))
        run = Run(device, folder.resolve(), chosen.quick, time.monotonic() + 60 * chosen.minutes, command)
        if chosen.one_short is not None:
            number, rate = chosen.one_short
            one_short(run, int(number), float(rate))
            return
        options = ["--device", chosen.device, "--minutes", str(chosen.minutes), "--out", str(run.folder), *quick]
        outcome = measure(run, chosen.sections, options)
        print(gpu_tables.text(run.folder, since))
    outcome.settle()


if __name__ == "__main__":
    main(sys.argv[1:])
