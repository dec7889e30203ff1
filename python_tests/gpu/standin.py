"""A stand-in for the CUDA driver without a device (libcuda.cpp), with the package's CUDA drivers linked to it.

torch.ops.rnnkern_stub runs them for CPU tensors. Kernels are compiled and loaded as for a GPU, and launches are
recorded."""

import ctypes
import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch

from python_tests.gpu import builder, drivers

OPERATORS = (
    "recurrence", "recurrence_backward", "recurrence_plan", "relevancy_recurrence", "relevancy_recurrence_backward",
    "relevancy_plan", "givens_recurrence", "givens_recurrence_backward", "givens_programs", "device_facts",
    "load_kernel", "kernel_counts",
)  # fmt: skip
OWN = (
    "enter(int device) -> ()",
    "start(int blocks, int shared_bytes=0, int cluster=1, bool cooperative=False) -> ()",  # launches AloneKernel
)
H100 = (9, 0, 132, 232448, 16, 7)
MULTIPROCESSORS, MAJOR, MINOR, SHARED_BYTES = 16, 75, 76, 97  # the driver's numbers of these attributes
INVALID_IMAGE = 200


class Launch(NamedTuple):
    """A recorded launch of a kernel."""

    symbol: str
    blocks: int
    threads: int
    shared_bytes: int
    cluster: int
    cooperative: bool
    stream: int
    parameter: bytes  # as many bytes as the cubin specifies


def missing() -> str:
    """The reason why the stand-in cannot be used on this machine; empty if it can."""
    if shutil.which(builder.compiler()[0]) is None:
        return "no C++ compiler"
    return "this process may have a driver" if torch.cuda.is_available() else ""


def build_driver() -> Path:
    """Builds libcuda.so.1, in a folder without other libraries of that name."""
    return build_libcuda("driver", "python_tests/gpu/libcuda.cpp")


def build_libcuda(name: str, source: str) -> Path:
    return builder.build(name, [source], link=["-Wl,-soname,libcuda.so.1"], interpret=False, file="libcuda.so.1")


def build_drivers() -> Path:
    """Builds the package's drivers and everything they need."""
    families = [path for name in ("cuda", "*/cuda") for path in sorted((builder.ROOT / "csrc").glob(f"{name}/*.cpp"))]
    common = [builder.ROOT / f"csrc/common/{name}.cpp" for name in ("counters", "fork", "row_layout", "tensor")]
    registered = builder.ROOT / "csrc/recurrence/registered.cpp"
    sources = [str(path.relative_to(builder.ROOT)) for path in [*common, registered, *families]]
    flags, libraries = builder.with_torch()
    flags += ["-O1", "-fopenmp", "-DRNNKERN_LIBRARY=rnnkern_stub"]
    sources = ["python_tests/gpu/on_host.cpp", *sources]
    return builder.build("drivers", sources, flags, [*libraries, "-fopenmp", "-ldl"], interpret=False)


class Driver:
    """The stand-in in this process. It starts without any state of earlier tests."""

    made = 0

    def __init__(self, library: ctypes.CDLL, facts: tuple[int, ...]) -> None:
        self.library = library
        library.standin_calls.restype = ctypes.c_char_p
        Driver.made += 1
        self.device, self.context = Driver.made, 1000 + Driver.made
        library.standin_context(ctypes.c_int64(self.context), self.device)
        self.set_facts(*facts)
        library.standin_occupancy(1)
        library.standin_capturing(0)
        for name in FUNCTIONS:
            self.fail(name, 0, 0)
        self.calls()

    def set_facts(self, major: int, minor: int, multiprocessors: int, shared_bytes: int, *clusters: int) -> None:
        named = {MAJOR: major, MINOR: minor, MULTIPROCESSORS: multiprocessors, SHARED_BYTES: shared_bytes}
        for attribute, value in named.items():
            self.library.standin_fact(attribute, value)
        self.library.standin_clusters(*clusters or (0, 0))

    def fail(self, name: str, error: int, times: int = 1) -> None:
        """Lets the next ``times`` calls of a function fail."""
        self.library.standin_fail(name.encode(), error, times)

    def set_capturing(self, captures: bool) -> None:
        self.library.standin_capturing(int(captures))

    def calls(self) -> list[list[Any]]:
        """All calls since the last query: names and arguments."""
        return json.loads(self.library.standin_calls())

    def launches(self) -> list[Launch]:
        """Like :meth:`calls`, for launches only."""
        return [launch_of(call) for call in self.calls() if call[0] == "cuLaunchKernelEx"]


def launch_of(call: list[Any]) -> Launch:
    _, symbol, grid, block, shared_bytes, stream, cluster, cooperative, parameter = call
    assert grid[1:] == block[1:] == cluster[1:] == [1, 1], "launches have one dimension"
    parameter = bytes.fromhex(parameter)
    return Launch(symbol, grid[0], block[0], shared_bytes, cluster[0], cooperative == 1, stream, parameter)


FUNCTIONS = re.findall(r'library, "(\w+)"', (builder.ROOT / "csrc/cuda/libcuda.h").read_text())
"""Those that the package asks a driver for."""


@functools.cache
def load(driver: Path | None = None, package: Path | None = None) -> ctypes.CDLL:
    """Loads both libraries, which are built unless their paths are given; the package's library finds the stand-in by
    its name in this process."""
    library = ctypes.CDLL(str(driver or build_driver()), mode=ctypes.RTLD_GLOBAL)
    library.kept = drivers.definitions("rnnkern_stub", OPERATORS, OWN)
    torch.ops.load_library(package or build_drivers())
    return library
