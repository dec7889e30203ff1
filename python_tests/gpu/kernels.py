"""The test libraries' kernels as Python functions of 32-bit words.

Imports neither pytest nor, except for a GPU, torch, because the run under the address sanitizer starts from here.
"""

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

from python_tests.gpu.builder import INTERPRETER, build, with_torch

CONFORMANCE = "csrc/interpreter/conformance.cpp"
FAULTS = "python_tests/gpu/faults.cpp"
UNORDERED = "python_tests/gpu/unordered.h"
"""The kernels of FAULTS whose result depends on the seed."""
LAUNCHER = ("common/fork", "common/tensor", "cuda/kernel", "cuda/libcuda", "cuda/modules", "cuda/plan")
"""Sources of the code that launches kernels on a GPU."""


class KernelError(RuntimeError):
    """An error of a launch that the interpreter or CUDA reports."""


def build_library(backend: str, flags: tuple[str, ...] = ()) -> Path:
    if backend == "cuda":
        if given := os.environ.get("RNNKERN_CONFORMANCE_LIBRARY"):
            return Path(given)
        own, libraries = with_torch()
        sources = [CONFORMANCE, *(f"csrc/{name}.cpp" for name in LAUNCHER)]
        return build("conformance_cuda", sources, [*own, *flags], [*libraries, "-ldl"], interpret=False)
    name = "conformance" + "".join(flag.partition("=")[2] for flag in flags)
    return build(name, [*INTERPRETER, CONFORMANCE, FAULTS], flags, link=flags)


@functools.cache
def library(flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    return ctypes.CDLL(str(build_library("interpret", flags)))


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
    """Runs the kernel with this name on words and returns `words` words, which are zero before the launch."""
    given = np.ascontiguousarray(given).view(np.uint32) if isinstance(given, np.ndarray) else np.array(given, np.uint32)
    if backend == "cuda":
        return launch_on_gpu(name, given, words)
    out = np.zeros(words, np.uint32)
    said = ctypes.create_string_buffer(4096)
    arrays = [
        argument
        for array in (given, out)
        for argument in (array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint32)), ctypes.c_int64(array.size))
    ]
    run = getattr(library(flags), entry)
    if run(name.encode(), *arrays, ctypes.c_uint64(seed), said, ctypes.c_int64(len(said))):
        raise KernelError(said.value.decode())
    return out


@functools.cache
def operators():
    """Operators of the conformance kernels: `run` on a GPU, and `programs`, which lists the header and type of each."""
    import torch

    import rnnkern  # noqa: F401  has the operator that compiles

    torch.ops.load_library(build_library("cuda"))
    return torch.ops.rnnkern_conformance


def launch_on_gpu(name: str, given: np.ndarray, words: int) -> np.ndarray:
    """Runs a kernel on a GPU. An endless spin ends after two seconds."""
    import torch

    out = torch.zeros(words, dtype=torch.int32, device="cuda")
    with patch.dict(os.environ, RNNKERN_CUDA_FLAGS="-DRNNKERN_SPIN_LIMIT=2000000000"):
        try:
            operators().run(name, torch.tensor(given.view(np.int32), device="cuda"), out)
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise KernelError(str(error)) from error
    return out.cpu().numpy().view(np.uint32)


def fault(name: str, given: np.ndarray | Sequence[int] = (0,), words: int = 1, **options) -> np.ndarray:
    """Like :func:`launch`, for the kernels in python_tests/gpu/faults.cpp."""
    return launch(name, given, words, entry="run_fault", **options)
