"""Compiles CUDA kernels with NVRTC at their first use and caches them on disk.

A kernel is a C++ type and the header that defines it. The name of a compiled kernel contains a hash of everything that
it depends on (the headers that it includes, the architecture and the options) and the version of NVRTC.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import re
import tempfile
import threading
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

CUDA_MAJOR = 13
"""The CUDA version that the kernels are written for."""
LIBRARY = f"libnvrtc.so.{CUDA_MAJOR}"
OPTIONS = ("-std=c++20", "-default-device")
_DIGEST_BYTES = 32
_FORMAT = b"content and its digest\0"
"""Is part of every name, so that a file of another form is not found, rather than taken for a damaged one."""

cells: dict[str, str] = {}
"""Headers of cells of :func:`rnnkern.cell`, by the name of their C++ type. Kernels of such a cell contain its name."""


class Program(NamedTuple):
    """A kernel for one architecture."""

    header: str  # "recurrence/cuda/block_forward.cuh", relative to the folder of the sources
    type: str  # "rnnkern::BlockForwardKernel<rnnkern::Lstm, float, 64>"
    arch: str  # "sm_90"

    @property
    def symbol(self) -> str:
        """The name of the kernel function, as profilers show it."""
        return re.sub(r"\W+", "_", re.sub(r"rnnkern::(device::)?", "", self.type)).strip("_")

    @property
    def source(self) -> str:
        own = "".join(text for name, text in cells.items() if f"rnnkern::{name}," in self.type)
        return (
            f'#include "{self.header}"\n#include "device/entry.cuh"\n{own}using Kernel = {self.type};\n'
            'extern "C" __global__ void __launch_bounds__(Kernel::threads, rnnkern::device::least_blocks<Kernel>())\n'
            f"    {self.symbol}(const __grid_constant__ Kernel::Problem problem) {{\n  Kernel::run(problem);\n}}\n"
        )


class CompilationError(RuntimeError):
    """A kernel does not compile; the message contains the log of the compiler."""


def sources() -> Path:
    """The folder of the headers, in an installed package or in a checkout."""
    package = Path(__file__).parent
    return next(path for path in (package / "csrc", package.parent / "csrc") if path.is_dir())


def arch_of(capability: tuple[int, ...]) -> str:
    """NVRTC's name for a compute capability."""
    return "sm_{}{}".format(*capability)


# ---- NVRTC


class Nvrtc:
    """The NVRTC library, called with ctypes."""

    def __init__(self, path: str) -> None:
        self.path = path
        for part in Path(path).parent.glob("libnvrtc-builtins.so.*") if os.sep in path else ():
            ctypes.CDLL(str(part))  # NVRTC opens this library by name and finds it if it is loaded
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def _call(self, function: str, *arguments: object) -> None:
        if error := getattr(self._library, function)(*arguments):
            raise CompilationError(f"{function}: {self._library.nvrtcGetErrorString(error).decode()}")

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        found = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, found)
        return found.raw

    def compile(self, source: str, options: tuple[str, ...]) -> bytes:
        """Compiles a program and returns its cubin."""
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
        try:
            given = [option.encode() for option in options]
            try:
                self._call("nvrtcCompileProgram", program, len(given), (ctypes.c_char_p * len(given))(*given))
            except CompilationError as error:
                log = self._bytes("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
                raise CompilationError(f"{error}\n{log}") from None
            return self._bytes("CUBIN", program)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))


def _places() -> Iterator[str]:
    """The paths where the packages of PyTorch and NVIDIA install NVRTC, and then the search path of the loader."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations if found else ():
        for inside in (f"cu{CUDA_MAJOR}/lib", "cuda_nvrtc/lib"):
            yield str(Path(folder, inside, LIBRARY))
    yield LIBRARY


@functools.cache
def nvrtc() -> Nvrtc | None:
    """NVRTC, or None if it is not installed."""
    for place in _places():
        if os.sep in place and not Path(place).exists():
            continue
        try:
            return Nvrtc(place)
        except OSError:
            continue
    return None


# ---- the sources of a program


@functools.cache
def _header(name: str) -> tuple[bytes, tuple[str, ...]]:
    """The text of a header and the names of the package's headers that it includes."""
    text = (sources() / name).read_bytes()
    return text, tuple(found.decode() for found in re.findall(rb'^#include "([^"]+)"', text, re.M))


def _included(header: str) -> dict[str, bytes]:
    """The texts of a header and of all headers that it includes, by name, without those of the interpreter, which only
    host code uses."""
    found: dict[str, bytes] = {}
    waiting = [header]
    while waiting:
        name = waiting.pop()
        if name not in found and (name == header or not name.startswith("interpreter/")):
            found[name], more = _header(name)
            waiting += more
    return found


def options_of(arch: str) -> tuple[str, ...]:
    """Compiler options without include folders; RNNKERN_CUDA_FLAGS adds more."""
    return (*OPTIONS, f"-arch={arch}", *os.environ.get("RNNKERN_CUDA_FLAGS", "").split())


def key_of(program: Program) -> str:
    """A key that changes with everything that the machine code depends on, except NVRTC itself."""
    standard = {path.name: path.read_bytes() for path in (sources() / "device/standard").iterdir()}
    return digest([program.source, *options_of(program.arch)], [program.header, "device/entry.cuh"], standard)


def digest(words: list[str], headers: list[str], texts: dict[str, bytes] | None = None) -> str:
    """A hash of ``words``, of ``headers`` with everything that they include, and of additional ``texts`` by name."""
    found = hashlib.sha256(_FORMAT)
    for word in words:
        found.update(word.encode() + b"\0")
    included = (item for header in headers for item in _included(header).items())
    for name, text in sorted({**dict(included), **(texts or {})}.items()):
        found.update(name.encode() + b"\0" + text + b"\0")
    return found.hexdigest()[:20]


def compile_now(program: Program) -> bytes:
    """Compiles a program and returns its cubin."""
    compiler = nvrtc()
    if compiler is None:
        raise CompilationError(f"{LIBRARY} was not found, and {cache_folder()} does not contain the kernel")
    folders = (f"-I{sources()}", f"-I{sources() / 'device/standard'}")
    return compiler.compile(program.source, (*options_of(program.arch), *folders))


# ---- the cache


def cache_folder() -> Path:
    """``$RNNKERN_CACHE_DIR``, ``$XDG_CACHE_HOME/rnnkern`` or ``~/.cache/rnnkern``."""
    if given := os.environ.get("RNNKERN_CACHE_DIR"):
        return Path(given)
    try:
        home = Path.home()
    except RuntimeError:  # the user has no home directory, as in some containers
        home = Path(os.sep)
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache", "rnnkern")


def place_of(program: Program) -> Path:
    """The file of a program in the cache: for this NVRTC, or without NVRTC for any version."""
    stem = f"{program.symbol[:120]}-{program.arch}-{key_of(program)}-nvrtc"
    if compiler := nvrtc():
        return cache_folder() / f"{stem}{compiler.version}.cubin"
    return max(cache_folder().glob(f"{stem}*.cubin"), default=cache_folder() / f"{stem}.cubin")


def any_compiled() -> bool:
    """Whether the cache contains kernels, which can then run without NVRTC."""
    return next(cache_folder().glob("*-nvrtc*.cubin"), None) is not None


def _not_ours(path: Path) -> str | None:
    """Why a file of the cache is not used, if it or its folder belongs to another user than this one or root: that user
    could put any code there."""
    for place in (path.parent, path):
        with contextlib.suppress(OSError):  # it is not there, or is found to be unreadable later
            if (owner := place.stat().st_uid) not in (0, os.geteuid()):
                return f"{place} belongs to the user with ID {owner}, not to you or root; `chown -R` changes that"
    return None


def read_file(path: Path) -> bytes | None:
    """The content of a file of the cache, without its digest. None if there is no such file; None and a warning if it
    is damaged or belongs to another user."""
    if why := _not_ours(path):
        warn_of_folder(str(path.parent), why)
        return None
    try:
        kept = path.read_bytes()
    except OSError:
        return None  # if it cannot be replaced either, `write_file` says why
    content, digest = kept[:-_DIGEST_BYTES], kept[-_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() == digest:
        return content
    warnings.warn(f"rnnkern: {path} is damaged and must be compiled again", stacklevel=2)
    return None


def write_file(path: Path, content: bytes) -> bool:
    """Writes a file of the cache, with its digest, atomically, so that other processes never see an incomplete one.
    Returns False after a warning if that is not possible."""
    partial, why = None, _not_ours(path)
    try:
        if why is None:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
                partial = Path(file.name)
                file.write(content + hashlib.sha256(content).digest())
            partial.chmod(0o644)  # readable by other users, for container images built as root
            partial.replace(path)
    except OSError as error:
        if partial:
            partial.unlink(missing_ok=True)
        why = error.strerror or str(error)
    if why:
        warn_of_folder(str(path.parent), why)
    return why is None


@functools.cache
def warn_of_folder(folder: str, why: str) -> None:
    warnings.warn(
        f"rnnkern cannot keep compiled kernels in {folder} ({why}). This process compiles them for itself, and the "
        "next process compiles them again. Set RNNKERN_CACHE_DIR to a writable folder of your own.",
        stacklevel=2,
    )


_lock = threading.Lock()
_in_memory: dict[Path, bytes] = {}


def is_compiled(program: Program) -> bool:
    """Whether the program is already compiled."""
    path = place_of(program)
    return path in _in_memory or _read(path) is not None


def _read(path: Path) -> bytes | None:
    """A cubin from the cache."""
    packed = read_file(path)
    return packed and zlib.decompress(packed)


def cubin_of(program: Program, again: bool = False) -> bytes:
    """Returns the cubin of a program from memory or from the cache, or compiles it.

    Args:
        program: the kernel.
        again: if True, compiles it even if the cache contains it.

    Raises:
        CompilationError: the kernel does not compile; the message contains the log.
    """
    path = place_of(program)
    with _lock:
        cubin = None if again else _in_memory.get(path)
    if cubin is None and not again:
        cubin = _read(path)
    if cubin is None:
        cubin = compile_now(program)
        write_file(path, zlib.compress(cubin))
    with _lock:
        _in_memory[path] = cubin
    return cubin


def compile_kernel(header: str, type: str, arch: str, again: bool) -> list[torch.Tensor]:
    """Compiles a kernel for the C++ launcher, which calls this for a kernel that is not loaded.

    Returns the cubin and the name of the kernel function, or an empty cubin and an error message: the C interface of
    PyTorch 2.11 loses the text of exceptions. Both are byte tensors, because the interface supports results of one type
    only.
    """
    program = Program(header, type, arch)
    try:
        cubin, text = cubin_of(program, again), program.symbol
    except Exception as error:
        cubin, text = b"", f"rnnkern: the CUDA kernel {type} does not compile for {arch}: {error}"
    # On the CPU regardless of torch.set_default_device; frombuffer rejects empty buffers.
    return [
        torch.frombuffer(bytearray(part + b"\0"), dtype=torch.uint8)[: len(part)] for part in (cubin, text.encode())
    ]
