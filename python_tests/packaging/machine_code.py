"""Machine code of the kernels from NVRTC, and the output of cuobjdump for it. Both are cached in build/machine_code by
a hash of all inputs, so unchanged kernels are not recompiled."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from python_tests.packaging.sass import Function, Resources, read_functions, read_report, report_faults
from rnnkern import _compiler
from rnnkern._compiler import Program

BUILD = Path(__file__).parents[2] / "build/machine_code"


def find_cuobjdump() -> str | None:
    triton = importlib.util.find_spec("triton")
    folders = [os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"]
    if triton and triton.origin:
        folders.append(str(Path(triton.origin).parent / "backends/nvidia/bin"))
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(folders))


CUOBJDUMP = find_cuobjdump()
needs_compiler = pytest.mark.skipif(_compiler.nvrtc() is None, reason=f"{_compiler.LIBRARY} is not installed")


def compiled(program: Program) -> Path:
    """The file with a program's cubin; older versions are deleted."""
    with mock.patch.dict(os.environ, {"RNNKERN_CACHE_DIR": str(BUILD)}):
        path = _compiler.place_of(program)
        if not path.exists():
            for old in BUILD.glob(f"{path.stem.rpartition('-')[0]}-*"):
                old.unlink(missing_ok=True)
        _compiler.cubin_of(program)
    return path


def dump(program: Program, what: str) -> Iterator[str]:
    """The lines that cuobjdump prints with one of its options."""
    path = compiled(program)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(_compiler._read(path))
        file.flush()
        done = subprocess.run([CUOBJDUMP, what, file.name], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return iter(done.stdout.splitlines())


def resources(program: Program) -> Resources:
    ((name, used),) = read_report(dump(program, "-res-usage")).items()
    assert name == program.symbol
    return used


def spills(programs: Iterable[Program]) -> list[str]:
    """Compiles all programs and lists those that spill registers to memory. Skips the test if cuobjdump is missing."""
    for program in programs:
        compiled(program)
    if CUOBJDUMP is None:
        pytest.skip("the kernels compile; there is no cuobjdump to read their machine code with")
    return [fault for program in programs for fault in report_faults(program.symbol, resources(program))]


def function(program: Program) -> Function:
    """The machine code of a kernel."""
    kept = compiled(program).with_suffix(".sass")
    text = _compiler.read_file(kept)
    if text is None:
        text = "\n".join(line for line in dump(program, "-sass") if ";" in line or "Function" in line).encode()
        _compiler.write_file(kept, text)
    (found,) = read_functions(text.decode().splitlines())
    assert found.name == program.symbol
    return found
