"""Compiles the kernels of users' cells with the system's C++ compiler when they are first used, and keeps them on disk.

A cell has one library for each SIMD level of a CPU, which contains the kernels, and one for CUDA, which lists its
kernels; rnnkern._compiler compiles each of those for the device when it first starts.
"""

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

from rnnkern import _compiler, _extension
from rnnkern._torch_private import constant_when_compiled

COMPILERS = ("c++", "g++", "clang++")
OPTIONS = ("-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
MOST_GATES = 12
"""Of one product on a CPU: a row of results is at most `accumulators` vectors (csrc/cpu/gemm.h)."""


class Known(NamedTuple):
    """A cell, of which nothing may be compiled yet."""

    type: str  # its C++ type
    header: str
    saved: int  # values per unit and step that it saves beside its states
    gates: int  # of its largest product


_known: dict[str, Known] = {}
_failed: dict[tuple[str, bool], str] = {}
_lock = threading.Lock()


def know(name: str, cell: Known) -> None:
    """Makes a cell known."""
    _known[name] = cell
    _compiler.cells[cell.type] = cell.header
    if cell.gates > MOST_GATES:
        _failed[name, False] = (
            f"the CPU kernel multiplies by at most {MOST_GATES} gates at once, and {name!r} has {cell.gates}"
        )


def is_known(name: str) -> bool:
    """Whether ``name`` is a cell of a user's."""
    return name in _known


def saved_by(name: str) -> int:
    """How many values per unit and step a cell saves beside its states."""
    return _known[name].saved


@functools.cache
def _functions() -> ctypes.CDLL:
    """The C functions of the compiled part (csrc/recurrence/registered.cpp)."""
    functions = ctypes.CDLL(str(_extension.LIBRARY))
    functions.rnnkern_register_cell.restype = ctypes.c_char_p
    return functions


@constant_when_compiled
def refusal(name: str, on_cuda: bool = False) -> str | None:
    """Why a cell of :func:`rnnkern.cell` has no CUDA kernels, or no CPU kernel for the SIMD level in use, or None.
    Compiles its library if it does not exist yet."""
    if not _extension.available:
        return None  # which is a reason of its own
    if (name, on_cuda) in _failed:
        return _failed[name, on_cuda]
    functions, encoded = _functions(), name.encode()
    if functions.rnnkern_has_cell(encoded, on_cuda):
        return None
    with _lock:
        if (name, on_cuda) not in _failed and not functions.rnnkern_has_cell(encoded, on_cuda):
            try:
                library = library_of(_known[name], on_cuda)
                error = functions.rnnkern_register_cell(encoded, os.fsencode(library))
                error = error and error.decode()
            except (OSError, RuntimeError) as raised:
                error = str(raised)
            if error:
                _failed[name, on_cuda] = _extension.missing(
                    f"the kernel of the cell {name!r} was not compiled: {error}",
                    "install a C++20 compiler, or name one in CXX, and start again",
                )
    return _failed.get((name, on_cuda))


def compiler() -> list[str]:
    """The command of the C++ compiler: ``$CXX``, or the first that there is.

    Raises:
        RuntimeError: there is none.
    """
    if given := os.environ.get("CXX"):
        return shlex.split(given)
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise RuntimeError(f"no C++ compiler was found ({', '.join(COMPILERS)})")
    return [found]


def library_of(cell: Known, on_cuda: bool, options: tuple[str, ...] = ()) -> Path:
    """The library of a cell for CUDA, or for the SIMD level in use: from the cache, or compiled.

    Raises:
        RuntimeError: with the compiler's words.
    """
    if on_cuda:
        target, header, macro = "cuda", "recurrence/cuda/compiled.h", "RNNKERN_COMPILED_KERNELS"
        own = ["-O1"]  # nothing of it is called more than once per launch
    else:
        target, header, macro = _simd_level(), "recurrence/cpu/compiled.h", "RNNKERN_COMPILED_CELL"
        own = ["-O3", f"-DRNNKERN_SIMD_LEVEL={target}"]
    source = f'#include "{header}"\n{cell.header}{macro}(rnnkern::{cell.type})\n'
    flags = [*OPTIONS, *own, *options, *shlex.split(os.environ.get("RNNKERN_CXXFLAGS", ""))]
    key = _compiler.digest([source, *flags], [header])
    path = _compiler.cache_folder() / f"cell-{target}-{key}.so"
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(dir=path.parent, prefix=".")
    except OSError as error:
        _compiler.warn_of_folder(str(path.parent), error.strerror or str(error))
        folder = tempfile.mkdtemp(prefix="rnnkern-")
        path = Path(folder, path.name)  # for this process alone
    try:
        Path(folder, "cell.cpp").write_text(source)
        command = [*compiler(), *flags, f"-I{_compiler.sources()}", "cell.cpp", "-o", "cell.so"]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}\n{done.stderr[:4000]}")
        Path(folder, "cell.so").replace(path)  # whole or not at all, whatever other processes do
    finally:
        if path.parent != Path(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return path


def _simd_level() -> str:
    return _extension.build_facts()["simd_level"].replace("avx512_bf16", "avx512")
