"""The test libraries' kernels as Python functions over 32-bit words. Imports neither torch nor pytest: the run under
the address sanitizer starts from here.
"""

import ctypes
import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from python_tests.gpu.builder import INTERPRETER, build

CONFORMANCE = "csrc/interpreter/conformance.cu"
FAULTS = "csrc/interpreter/faults.cpp"


class KernelError(RuntimeError):
    """What the interpreter or the CUDA runtime says of a launch."""


@functools.cache
def capability() -> tuple[int, int] | None:
    """Of this machine's first GPU."""
    if not (tool := shutil.which("nvidia-smi")):
        return None
    query = [tool, "--query-gpu=compute_cap", "--format=csv,noheader"]
    said = subprocess.run(query, check=False, capture_output=True, text=True)
    lines = said.stdout.split()
    return tuple(map(int, lines[0].split("."))) if said.returncode == 0 and lines else None


def build_library(backend: str, flags: tuple[str, ...] = ()) -> Path:
    if backend == "cuda":
        return build("conformance_cuda", [CONFORMANCE], flags, target="sm_{}{}".format(*capability()))
    name = "conformance" + "".join(flag.partition("=")[2] for flag in flags)
    return build(name, [*INTERPRETER, CONFORMANCE, FAULTS], flags, link=flags)


@functools.cache
def library(backend: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    return ctypes.CDLL(str(build_library(backend, flags)))


def launch(
    name: str,
    given: np.ndarray | Sequence[int],
    words: int,
    *,
    backend: str = "interpret",
    seed: int = 0,
    entry: str = "run_conformance",
    flags: tuple[str, ...] = (),
) -> np.ndarray:
    """Runs the kernel of this name on words and returns `words` words, which were zero."""
    given = np.ascontiguousarray(given).view(np.uint32) if isinstance(given, np.ndarray) else np.array(given, np.uint32)
    out = np.zeros(words, np.uint32)
    said = ctypes.create_string_buffer(4096)
    arrays = [
        argument
        for array in (given, out)
        for argument in (array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint32)), ctypes.c_int64(array.size))
    ]
    run = getattr(library(backend, flags), entry)
    if run(name.encode(), *arrays, ctypes.c_uint64(seed), said, ctypes.c_int64(len(said))):
        raise KernelError(said.value.decode())
    return out


def fault(name: str, given: np.ndarray | Sequence[int] = (0,), words: int = 1, **options) -> np.ndarray:
    """The same for the kernels of csrc/interpreter/faults.h."""
    return launch(name, given, words, entry="run_fault", **options)
