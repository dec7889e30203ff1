"""The stages of ``make gpu``: three calls of at most ten minutes, each of which first builds what is missing on its
machine.

A stage may use the seconds that earlier stages left over, but none of the seconds of later stages.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from perf.record import ROOT

CALL_SECONDS = 600
RESERVED = 15
"""Seconds of a call for starting and for writing the last results; no stage may use them."""
BUILD, KERNELS = 180, 75
CALLS: dict[int, dict[str, float]] = {
    1: {"build": BUILD, "kernels": KERNELS, "smoke": 90, "conformance": 60, "families": 150},
    2: {"build": BUILD, "kernels": KERNELS, "sanitize": 120, "wait": 60, "tests": 140},
    3: {"build": BUILD, "kernels": KERNELS, "tables": 200, "memory": 30, "cpu": 75, "flashrnn": 20},
}
"""For each call its stages, in order, with their seconds."""
STAGES = tuple(dict.fromkeys(name for stages in CALLS.values() for name in stages))
NEEDED = ("build", "smoke")
"""Stages without which later stages cannot work."""

RECURRENCE = "test_recurrence.py"
ON_A_GPU = ("-k", "on_a_gpu")  # the other tests of Triton kernels need no GPU
FAMILIES: dict[str, tuple[str, ...]] = {
    "block": (RECURRENCE, "-k", "block"),
    "stepwise": (RECURRENCE, "-k", "stepwise"),
    "cluster": ("test_recurrence_cluster.py",),
    "cluster_tf32": ("test_recurrence_tf32.py",),
    "grid": ("test_recurrence_grid.py",),
    "relevancy": ("test_relevancy.py",),
    "relevancy_cluster": ("test_relevancy_cluster.py",),
    "givens": ("test_givens_recurrence.py",),
    "linear_scan": ("test_linear_scan.py", *ON_A_GPU),
    "moment_filter": ("test_moment_filter.py", *ON_A_GPU),
    "skew_exp": ("test_skew_exp.py", *ON_A_GPU),
    "gather_attention": ("test_gather_attention.py", *ON_A_GPU),
}
"""For each family of kernels its tests in python_tests/gpu. Each family runs in a process of its own, because a kernel
that traps destroys the CUDA context of its process."""
TESTS = FAMILIES | {"calls": ("test_recurrence_calls.py",), "streams": ("test_recurrence_cuda.py",)}
AT_ONCE = 4
"""Number of processes that share the GPU while nothing is timed."""
TOOLS = ("memcheck", "racecheck")
CACHE = ROOT / "build" / "cuda_kernels"
"""Folder of compiled kernels, kept for the next call on the same machine."""
SPIN_NS = 2_000_000_000
"""Nanoseconds after which a waiting kernel traps instead of hanging and reports its name; used in the first call."""
MARGIN = 25
"""Seconds that measurements may take after their deadline, for one case, the pictures and the tables."""
STAND_IN = ("python_tests/gpu/test_driver.py", "python_tests/gpu/test_launches.py")
"""Tests of launches on a stand-in for the CUDA driver."""
STUCK = 20
"""Seconds after which pytest prints the traceback of a test that still runs."""
USES = {
    "pytest": "no tests",
    "hypothesis": "no tests of drawn calls",
    "matplotlib": "no pictures",
    "flashrnn": "no comparison with FlashRNN",
}
"""What is skipped if a package is missing."""


class Command(NamedTuple):
    name: str  # part of the name of its log
    arguments: list[str]


class Stage(NamedTuple):
    name: str
    limit: float
    commands: Callable[[float], list[Command]]  # function of the remaining seconds
    lacks: str | None = None  # a missing package or program without which it cannot run
    environment: Mapping[str, str] = {}
    at_once: int = 1


class Target(NamedTuple):
    """Parameters of the stages."""

    folder: Path  # folder of the results
    call: int | None = None  # None for stages of several calls
    quick: bool = False  # measure tiny sizes only


def importable(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def absent() -> list[str]:
    return [f"{package} is absent: {loss}" for package, loss in USES.items() if not importable(package)]


def find(program: str) -> str | None:
    """Path of a program on PATH or in the CUDA toolkit."""
    places = (program, f"{os.environ.get('CUDA_HOME')}/bin/{program}", f"/usr/local/cuda/bin/{program}")
    return next(filter(None, map(shutil.which, places)), None)


def limit_of(name: str) -> float:
    return next(stages[name] for stages in CALLS.values() if name in stages)


def pytest(*selected: str) -> list[str]:
    """A pytest command that works with any plugins of the machine and does not turn warnings into errors."""
    options = ["-q", "-rs", "--maxfail=3", "-p", "no:cacheprovider", "-p", "no:benchmark", "-W", "default"]
    return [sys.executable, "-m", "pytest", *options, "-o", f"faulthandler_timeout={STUCK}", *selected]


def of_family(name: str, *options: str) -> list[str]:
    file, *rest = TESTS[name]
    return pytest(f"python_tests/gpu/{file}", *rest, *options)


def primitives(mark: str) -> Command:
    return Command("primitives", pytest("python_tests/gpu/test_primitives.py", "-m", mark))


def python(name: str, *arguments: str) -> Command:
    return Command(name, [sys.executable, *arguments])


def environment(target: Target) -> dict[str, str]:
    """Environment variables of every stage: the cache of compiled kernels and the compiler options. Line information
    for the sanitizer does not change the machine code."""
    found = {"RNNKERN_CACHE_DIR": str(CACHE)}
    own = {1: ["-lineinfo", f"-DRNNKERN_SPIN_LIMIT={SPIN_NS}"], 2: ["-lineinfo"]}.get(target.call, [])
    flags = [*os.environ.get("RNNKERN_CUDA_FLAGS", "").split(), *own]
    return found | ({"RNNKERN_CUDA_FLAGS": " ".join(flags)} if flags else {})


def build(target: Target) -> Callable[[float], list[Command]]:
    commands = [
        python("package", "setup.py", "build_ext", "--inplace"),
        python("primitives", "-c", "from python_tests.gpu import kernels; kernels.build_library('cuda')"),
        Command("machine", ["sh", "-c", "nvidia-smi; lscpu; c++ --version; exit 0"]),
    ]
    return lambda left: commands


def measure(target: Target, *sections: str) -> Callable[[float], list[Command]]:
    def commands(left: float) -> list[Command]:
        minutes = f"{max(left - MARGIN, 5) / 60:.2f}"
        options = ["--out", str(target.folder), "--minutes", minutes, *(["--quick"] if target.quick else [])]
        return [python(sections[0], "-m", "perf.measure_gpu", *options, "--sections", *sections)]

    return commands


CPU = "import sys, pathlib, perf.recurrence as r; r.main(sys.argv[2:], pathlib.Path(sys.argv[1]))"


def on_cpu(target: Target) -> Callable[[float], list[Command]]:
    """Measures an LSTM and a GRU of one size with different numbers of threads; each number has a folder of its own."""
    count = os.cpu_count() or 1
    threads = [n for n in (1, 2, 4, 8, 16) if n <= count]
    size = ["--quick"] if target.quick else ["--shapes", "200x100x512", "--seconds", "0.5"]
    cells = ["--cells", "lstm", "gru"]
    commands = [
        python(f"threads_{n}", "-c", CPU, str(target.folder), "--threads", str(n), *cells, *size) for n in threads
    ]
    return lambda left: commands


def families(mark: str) -> Callable[[float], list[Command]]:
    return lambda left: [Command(name, of_family(name, "-m", mark)) for name in FAMILIES]


def sanitize(sanitizer: str) -> Callable[[float], list[Command]]:
    def under(tool: str, name: str) -> Command:
        return Command(f"{tool}_{name}", [sanitizer, "--error-exitcode", "1", "--tool", tool,
                                          *of_family(name, "-m", "sanitize")])  # fmt: skip

    return lambda left: [under(tool, name) for tool in TOOLS for name in FAMILIES]


def plan(names: Sequence[str], target: Target) -> list[Stage]:
    """The stages with these names, in order."""
    no_pytest = None if importable("pytest") else "pytest"
    sanitizer = find("compute-sanitizer")
    uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # each tensor becomes an allocation whose bounds are checked
    threads = {"OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // AT_ONCE, 1))}
    levels = {"RNNKERN_SIMD_LEVELS": "plain" if target.call in (1, 2) else "host"}
    compiled = [python("kernels", "-m", "perf.gpu_kernels")]
    waits = [python("wait", "-m", "perf.wait_scope", "--out", str(target.folder))]
    tables = ("short", "plain", "orthogonal", "relevancy", "scans", "variants")
    details = {
        "build": (build(target), None, levels, 3),
        "kernels": (lambda left: compiled,),
        "smoke": (lambda left: [primitives("smoke")], no_pytest),
        "conformance": (lambda left: [primitives("conformance")], no_pytest),
        "families": (families("smoke"), no_pytest, threads, AT_ONCE),
        "sanitize": (
            sanitize(sanitizer or "compute-sanitizer"),
            no_pytest or (None if sanitizer else "compute-sanitizer"),
            threads | uncached,
            AT_ONCE,
        ),
        "wait": (lambda left: waits,),
        "tests": (lambda left: [Command(name, of_family(name)) for name in TESTS], no_pytest, threads, AT_ONCE),
        "tables": (measure(target, *tables),),
        "memory": (measure(target, "memory"),),
        "cpu": (on_cpu(target),),
        "flashrnn": (measure(target, "flashrnn"), None if importable("flashrnn") else "flashrnn"),
    }
    of_call = CALLS[target.call] if target.call else {name: limit_of(name) for name in STAGES}
    stages = [Stage(name, limit, *details[name]) for name, limit in of_call.items() if name in names]
    return [stage._replace(environment=environment(target) | stage.environment) for stage in stages]


def rehearsal() -> list[Stage]:
    """The stages of a dry run without a GPU: kernels are compiled and launched on the tests' stand-in for the
    driver."""
    compiled = [python("kernels", "-m", "perf.gpu_kernels", "--few", "sm_90")]
    stages = [Stage("compile", 120, lambda left: compiled)]
    if tests := [path for path in STAND_IN if (ROOT / path).exists()]:
        lacks = None if importable("pytest") else "pytest"
        launches = [Command("launches", pytest(*tests))]
        stages.append(Stage("driver", 450, lambda left: launches, lacks, {"RNNKERN_GPU_TESTS": ""}))
    return stages
