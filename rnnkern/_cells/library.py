"""Compiles users' cells with the system's C++ compiler at their first use, and caches them on disk.

A cell has a library for each SIMD level of a CPU, with the kernels, and one for CUDA, with a list of its kernels, which
rnnkern._compiler compiles for the device when they are first started.
"""

import atexit
import ctypes
import functools
import os
import re
import shlex
import shutil
import struct
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

INSTALL = "install a C++20 compiler, or name one in CXX, and start again"
ROOM = "free space on the disk of the temporary folder, or set TMPDIR to another writable folder, and start again"
REMEDIES = {
    "No space left|quota exceeded|File size limit|File too large": ROOM,
    "[Kk]illed": "start again; if the system killed the compiler for lack of memory, free some first",
    "": INSTALL,
}
"""What a user can do, by what a compiler that fails says."""
LOADABLE = (
    "set RNNKERN_CACHE_DIR to a folder from which libraries may be loaded, or name another compiler in CXX, and start "
    "again"
)


class LibraryError(RuntimeError):
    """There is no library of a cell; the message says why, and ``remedy`` what to do."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


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
                for again in (False, True):  # a library of another system in the same folder may not load
                    library = library_of(_known[name], on_cuda, again=again)
                    error = functions.rnnkern_register_cell(encoded, os.fsencode(library))
                    if error is None:
                        return None
                why, remedy = error.decode(errors="replace"), LOADABLE
            except LibraryError as raised:
                why, remedy = str(raised), raised.remedy
            _failed[name, on_cuda] = _extension.missing(
                f"the kernel of the cell {name!r} was not compiled: {why}", remedy
            )
    return _failed.get((name, on_cuda))


def compiler() -> list[str]:
    """The command of the C++ compiler: ``$CXX``, or the first that is installed.

    Raises:
        LibraryError: none was found.
    """
    if given := os.environ.get("CXX"):
        return shlex.split(given)
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise LibraryError(f"no C++ compiler was found ({', '.join(COMPILERS)})", INSTALL)
    return [found]


def library_of(cell: Known, on_cuda: bool, options: tuple[str, ...] = (), again: bool = False) -> Path:
    """The library of a cell for CUDA, or for the SIMD level in use, from the cache, or newly compiled, which ``again``
    asks for.

    Raises:
        LibraryError: it does not compile; the message contains the compiler's output.
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
    if not again and _compiler.read_file(path) is not None:
        return path  # the loader ignores the digest at its end
    try:
        library = _compile(source, flags)
        if not _compiler.write_file(path, library):
            folder = tempfile.mkdtemp(prefix="rnnkern-")  # only for this process
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            path = Path(folder, path.name)
            path.write_bytes(library)
    except OSError as error:
        raise LibraryError(f"the temporary folder cannot be written: {error}", ROOM) from None
    return path


def _compile(source: str, flags: list[str]) -> bytes:
    """Compiles a library in a temporary folder, and returns it."""
    command = [*compiler(), *flags, f"-I{_compiler.sources()}", "cell.cpp", "-o", "cell.so"]
    with tempfile.TemporaryDirectory(prefix="rnnkern-") as folder:
        Path(folder, "cell.cpp").write_text(source)
        # Messages in English for REMEDIES; a compiler that is killed leaves its own files in TMPDIR.
        environment = os.environ | {"LC_ALL": "C", "TMPDIR": folder}
        try:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, errors="replace")
        except OSError as error:
            raise LibraryError(f"{command[0]} does not start: {error}", INSTALL) from None
        if done.returncode == 0:
            library = Path(folder, "cell.so").read_bytes()
            if not _is_cut(library):
                return library
            said = f"the linker wrote only the first {len(library)} bytes: No space left on device"
        elif done.returncode < 0:
            said = f"killed by signal {-done.returncode}"
        else:
            said = done.stderr[:4000]
    remedy = next(remedy for signs, remedy in REMEDIES.items() if re.search(signs, said))
    raise LibraryError(f"{shlex.join(command)}\n{said}", remedy)


def _is_cut(library: bytes) -> bool:
    """Whether the end of a library is missing, which GNU ld does not report if the disk is full. The table of sections,
    whose place is in the ELF header, comes last."""
    if len(library) < 64 or library[:4] != b"\x7fELF":
        return len(library) < 64
    start, size, count = struct.unpack_from("=Q10xHH", library, 40)
    return len(library) < start + size * count


def _simd_level() -> str:
    level = _extension.build_facts()["simd_level"]
    return level if level in ("plain", "avx2") else "avx512"  # higher levels differ in products alone
