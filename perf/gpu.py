"""Everything that needs a GPU, in stages: what ``make gpu`` runs, in 9 minutes on 16 cores and without network.

``python -m perf.gpu --help``. Each stage is a process of its own with a time limit; what it prints goes to ``logs`` in
the results' folder. The rest does not run when a stage of ``NEEDED`` has failed.
"""

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from perf import gpu_tables, record

LIMITS = {"build": 180, "smoke": 30, "conformance": 45, "tests": 120, "sanitize": 100, "measure": 360}
"""Seconds of each stage, in order."""
TOTAL = 530
NEEDED = ("build", "smoke")
MARGIN = 25
"""Seconds that the last measurements take beyond their deadline: a case, the pictures, the tables."""
WORKERS = 4
TAIL = 25
LOG_BYTES = 2**18
TOOLS = ("memcheck", "racecheck", "synccheck")
USES = {
    "pytest": "no tests",
    "hypothesis": "no property tests",
    "xdist": "tests one after the other",
    "matplotlib": "no pictures",
    "flashrnn": "no comparison with FlashRNN",
}
"""What goes with a package."""

Commands = Callable[[float], list[list[str]]]
"""From the seconds that are left to the stage's commands."""


class Stage(NamedTuple):
    name: str
    limit: float
    commands: Commands
    lacks: str | None = None  # what it cannot run without
    environment: Mapping[str, str] = {}


class Result(NamedTuple):
    stage: str
    seconds: float
    said: str
    failed: bool


def importable(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def absent() -> list[str]:
    return [f"{package} is absent: {loss}" for package, loss in USES.items() if not importable(package)]


def find(program: str) -> str | None:
    """On PATH or in the toolkit."""
    places = (program, f"{os.environ.get('CUDA_HOME')}/bin/{program}", f"/usr/local/cuda/bin/{program}")
    return next(filter(None, map(shutil.which, places)), None)


def plan(names: Sequence[str], folder: Path, quick: bool, capability: tuple[int, int]) -> list[Stage]:
    """The stages of that name, in order."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    gpu = [*pytest, "python_tests/gpu"]
    no_pytest = None if importable("pytest") else "pytest"
    sanitizer = find("compute-sanitizer")

    def marked(name: str) -> Commands:
        return lambda left: [[*gpu, "-m", name]]

    def tests(left: float) -> list[list[str]]:
        """What runs on the GPU in one process, the rest in several; packaging installs, and that needs a network."""
        workers = ["-n", str(WORKERS)] if importable("xdist") else []
        elsewhere = ["--ignore=python_tests/gpu", "--ignore=python_tests/packaging"]
        return [gpu, [*pytest, "python_tests", *elsewhere, *workers]]

    def sanitize(left: float) -> list[list[str]]:
        return [[sanitizer, "--error-exitcode", "1", "--tool", tool, *gpu, "-m", "sanitize"] for tool in TOOLS]

    def measure(left: float) -> list[list[str]]:
        minutes = f"{max(left - MARGIN, 0) / 60:.2f}"
        options = ["--out", str(folder), "--minutes", minutes, *(["--quick"] if quick else [])]
        return [[sys.executable, "-m", "perf.measure_gpu", *options]]

    def build(left: float) -> list[list[str]]:
        """The package, and the primitives' test library, which smoke has no time to build."""
        primitives = "from python_tests.gpu import kernels; kernels.build_library('cuda')"
        return [[sys.executable, "setup.py", "build_ext", "--inplace"], [sys.executable, "-c", primitives]]

    device = {"TORCH_CUDA_ARCH_LIST": os.environ.get("TORCH_CUDA_ARCH_LIST") or "{}.{}".format(*capability)}
    device |= {"RNNKERN_CUDA": "1"}
    threads = {"OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // WORKERS, 1))}
    uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # each tensor is an allocation with bounds of its own
    commands: dict[str, tuple] = {
        "build": (build, None, device),
        "smoke": (marked("smoke"), no_pytest),
        "conformance": (marked("conformance"), no_pytest),
        "tests": (tests, no_pytest, threads),
        "sanitize": (sanitize, no_pytest or (None if sanitizer else "compute-sanitizer"), uncached),
        "measure": (measure,),
    }
    return [Stage(name, limit, *commands[name]) for name, limit in LIMITS.items() if name in names]


def run(stages: Sequence[Stage], logs: Path, total: float) -> Iterator[Result]:
    """Runs them in order; yields how each has ended."""
    deadline = time.monotonic() + total
    stopped = None
    for stage in stages:
        left = min(stage.limit, deadline - time.monotonic())
        if stopped:
            yield Result(stage.name, 0.0, f"not run, since {stopped} has failed", False)
        elif stage.lacks:
            yield Result(stage.name, 0.0, f"left out: {stage.lacks} is absent", False)
        elif left <= 0:
            yield Result(stage.name, 0.0, "not run: the time is up", True)
        else:
            result = run_one(stage, logs / f"{stage.name}.log", left)
            if result.failed and stage.name in NEEDED:
                stopped = stage.name
            yield result


def run_one(stage: Stage, log: Path, left: float) -> Result:
    """Runs all of a stage's commands, into one log; nothing that they start outlives them."""
    begun = time.monotonic()
    paths = [str(record.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    environment |= {"RNNKERN_GPU_TESTS": "cuda"} | stage.environment
    said = []
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        for command in stage.commands(left):
            file.write(f"$ {' '.join(command)}\n".encode())
            file.flush()
            code = call(command, file, environment, begun + left - time.monotonic())
            if code is None:
                said.append(f"killed at its limit of {left:.0f} s")
                break
            if code:
                said.append(f"failed with {code}")
    trim(log)
    return Result(stage.name, time.monotonic() - begun, ", ".join(said) or "passed", bool(said))


def call(command: Sequence[str], log, environment: dict[str, str], left: float) -> int | None:
    """The exit status, or None when the time is up."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, cwd=record.ROOT, env=environment, start_new_session=True, **streams)
    try:
        return process.wait(max(left, 0))
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children too, however it ended
        process.wait()


def trim(log: Path) -> None:
    """Keeps the end of a long log."""
    if log.stat().st_size > LOG_BYTES:
        log.write_bytes(b"...\n" + log.read_bytes()[-LOG_BYTES:])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", choices=list(LIMITS), default=list(LIMITS), help="default: all")
    parser.add_argument("--out", type=Path, help="folder of results; default: the device's in perf/results")
    parser.add_argument("--quick", action="store_true", help="tiny measurements; without --out into build/gpu")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    begun, since = time.monotonic(), record.now()
    chosen = parse(argv)
    if not torch.cuda.is_available():
        sys.exit(f"make gpu needs a CUDA device and nvcc: PyTorch {torch.__version__} sees no CUDA device")
    if "build" in chosen.stages and not find("nvcc"):
        sys.exit("make gpu needs a CUDA device and nvcc: nvcc is not on PATH, in CUDA_HOME or in /usr/local/cuda")
    device = torch.device("cuda", 0)
    folder = chosen.out or (record.ROOT / "build" / "gpu" if chosen.quick else record.folder(device))
    folder = folder.resolve()
    print(f"{record.device_name(device)}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}")
    print(*absent(), "python_tests/packaging is left out: it installs over the network", sep="\n", flush=True)
    stages = plan(chosen.stages, folder, chosen.quick, torch.cuda.get_device_capability(device))
    failed = []
    for result in run(stages, folder / "logs", TOTAL):
        print(f"{result.stage:<12}{result.seconds:>7.1f} s  {result.said}", flush=True)
        if result.failed:
            failed.append(result.stage)
            log = folder / "logs" / f"{result.stage}.log"
            lines = log.read_text(errors="replace").splitlines()[-TAIL:] if result.seconds else []
            print(*(f"    {line[:200]}" for line in lines), sep="\n", flush=True)
    if "measure" in chosen.stages:
        print("", gpu_tables.text(folder, since), "", sep="\n")
    outcome = f"failed: {', '.join(failed)}" if failed else "all passed"
    print(f"{outcome}; {time.monotonic() - begun:.0f} s")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(sys.argv[1:])
