"""Compiles the CPU kernels of users' cells with the system's C++ compiler when they are first used, and keeps them on
disk."""

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from rnnkern import _compiler, _extension
from rnnkern._torch_private import constant_when_compiled

COMPILERS = ("c++", "g++", "clang++")
OPTIONS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
HEADER = "recurrence/cpu/compiled.h"
CELL = "Compiled"
"""The C++ type of every such cell: each is a library of its own."""

_headers: dict[str, str] = {}
_saved: dict[str, int] = {}
_failed: dict[str, str] = {}
_lock = threading.Lock()


MOST_GATES = 4
"""Of one product: max_vectors of csrc/cpu/gemm.h."""


def know(name: str, header: str, saved: int, gates: int) -> None:
    """Makes a cell known by its header; nothing is compiled yet. ``saved`` is what it saves per unit and step,
    ``gates`` are those of its largest product."""
    _headers[name], _saved[name] = header, saved
    if gates > MOST_GATES:
        _failed[name] = f"the CPU kernel multiplies by at most {MOST_GATES} gates at once, and {name!r} has {gates}"


def is_known(name: str) -> bool:
    """Whether ``name`` is a cell of a user's."""
    return name in _headers


def saved_by(name: str) -> int:
    """How many values per unit and step a cell saves beside its states."""
    return _saved[name]


@functools.cache
def _functions() -> ctypes.CDLL:
    """The C functions of the compiled part (csrc/recurrence/cpu/registered.cpp)."""
    functions = ctypes.CDLL(str(_extension.LIBRARY))
    functions.rnnkern_register_cell.restype = ctypes.c_char_p
    return functions


@constant_when_compiled
def refusal(name: str) -> str | None:
    """Why a cell of :func:`rnnkern.cell` has no CPU kernel for the SIMD level in use, or None. Compiles the kernel if
    it does not exist yet."""
    if not _extension.available:
        return None  # which is a reason of its own
    if name in _failed:
        return _failed[name]
    functions, encoded = _functions(), name.encode()
    if functions.rnnkern_has_cell(encoded):
        return None
    with _lock:
        if name not in _failed and not functions.rnnkern_has_cell(encoded):
            try:
                error = functions.rnnkern_register_cell(encoded, os.fsencode(library_of(_headers[name])))
                error = error and error.decode()
            except (OSError, RuntimeError) as raised:
                error = str(raised)
            if error:
                _failed[name] = _extension.missing(
                    f"the kernel of the cell {name!r} was not compiled: {error}",
                    "install a C++20 compiler, or name one in CXX, and start again",
                )
    return _failed.get(name)


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


def library_of(header: str) -> Path:
    """The library of a cell with that header for the SIMD level in use: from the cache, or compiled.

    Raises:
        RuntimeError: with the compiler's words.
    """
    level = _extension.build_facts()["simd_level"].replace("avx512_bf16", "avx512")
    source = f'#include "{HEADER}"\n{header}RNNKERN_COMPILED_CELL(rnnkern::{CELL})\n'
    options = [*OPTIONS, f"-DRNNKERN_SIMD_LEVEL={level}", *shlex.split(os.environ.get("RNNKERN_CXXFLAGS", ""))]
    key = _compiler.digest([source, *options], [HEADER])
    path = _compiler.cache_folder() / f"cell-{level}-{key}.so"
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
        command = [*compiler(), *options, f"-I{_compiler.sources()}", "cell.cpp", "-o", "cell.so"]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}\n{done.stderr[:4000]}")
        Path(folder, "cell.so").replace(path)  # whole or not at all, whatever other processes do
    finally:
        if path.parent != Path(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return path
