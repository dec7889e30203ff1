"""Compiles users' cells with the system's C++ compiler at their first use, and caches them on disk.

A cell has a library for each SIMD level of a CPU, with the kernels, and one for CUDA, with a list of its kernels, which
rnnkern._compiler compiles for the device when they are first started.
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
"""Maximum number of gates of a product on a CPU: a row of results has at most `accumulators` vectors
(csrc/cpu/gemm.h)."""


class Known(NamedTuple):
    """A registered cell, which may not be compiled yet."""

    type: str  # the name of its C++ type
    header: str
    saved: int  # values per unit and step that it saves in addition to its states
    gates: int  # number of gates of its largest product


_known: dict[str, Known] = {}
_failed: dict[tuple[str, bool], str] = {}
_lock = threading.Lock()


def know(name: str, cell: Known) -> None:
    """Registers a cell."""
    _known[name] = cell
    _compiler.cells[cell.type] = cell.header
    if cell.gates > MOST_GATES:
        _failed[name, False] = (
            f"the CPU kernel multiplies by at most {MOST_GATES} gates at once, and {name!r} has {cell.gates}"
        )


def is_known(name: str) -> bool:
    """Whether ``name`` is a registered cell."""
    return name in _known


def saved_by(name: str) -> int:
    """The number of values per unit and step that a cell saves in addition to its states."""
    return _known[name].saved


@functools.cache
def _functions() -> ctypes.CDLL:
    """The C functions of the compiled part (csrc/recurrence/registered.cpp)."""
    functions = ctypes.CDLL(str(_extension.LIBRARY))
    functions.rnnkern_register_cell.restype = ctypes.c_char_p
    return functions


@constant_when_compiled
def refusal(name: str, on_cuda: bool = False) -> str | None:
    """The reason why a cell of :func:`rnnkern.cell` has no CUDA kernels, or no CPU kernel for the SIMD level in use;
    None if it has. Compiles its library if needed."""
    if not _extension.available:
        return None  # another function gives that reason
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
    """The command of the C++ compiler: ``$CXX``, or the first that is installed.

    Raises:
        RuntimeError: none was found.
    """
    if given := os.environ.get("CXX"):
        return shlex.split(given)
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise RuntimeError(f"no C++ compiler was found ({', '.join(COMPILERS)})")
    return [found]


def library_of(cell: Known, on_cuda: bool, options: tuple[str, ...] = ()) -> Path:
    """The library of a cell for CUDA, or for the SIMD level in use, from the cache or newly compiled.

    Raises:
        RuntimeError: it does not compile; the message contains the compiler's output.
    """
    if on_cuda:
        target, header, macro = "cuda", "recurrence/cuda/kernel_table.h", "RNNKERN_COMPILED_KERNELS"
        own = ["-O1"]  # its code runs at most once per launch
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
        path = Path(folder, path.name)  # only for this process
    try:
        Path(folder, "cell.cpp").write_text(source)
        command = [*compiler(), *flags, f"-I{_compiler.sources()}", "cell.cpp", "-o", "cell.so"]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}\n{done.stderr[:4000]}")
        Path(folder, "cell.so").replace(path)  # atomic, since other processes may do the same
    finally:
        if path.parent != Path(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return path


def _simd_level() -> str:
    level = _extension.build_facts()["simd_level"]
    return level if level in ("plain", "avx2") else "avx512"  # higher levels differ in products alone
