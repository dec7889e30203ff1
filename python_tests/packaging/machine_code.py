"""The library's machine code, as cuobjdump prints it."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import rnnkern
from python_tests.packaging.sass import Function, read_functions

LIBRARY = Path(rnnkern.__file__).parent / "_C.abi3.so"
ARCHS = ["sm_" + arch.removesuffix("+PTX").replace(".", "") for arch in rnnkern.build_info()["cuda_archs"] or ()]
RELEVANCY = b"9relevancy"
"""Its namespace, in names of functions."""


def find_cuobjdump() -> str | None:
    triton = importlib.util.find_spec("triton")
    folders = [os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"]
    if triton and triton.origin:
        folders.append(str(Path(triton.origin).parent / "backends/nvidia/bin"))
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(folders))


CUOBJDUMP = find_cuobjdump()
needs_library = pytest.mark.skipif(
    not ARCHS or CUOBJDUMP is None, reason="no cuobjdump" if ARCHS else "the library has no CUDA part"
)


def dump(*arguments: str | Path) -> Iterator[str]:
    """The lines that cuobjdump prints."""
    with subprocess.Popen(
        [CUOBJDUMP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield from process.stdout
        errors = process.stderr.read()
    assert process.returncode == 0, errors


def functions(arch: str, folder: Path, relevancy: bool) -> Iterator[Function]:
    """Of the relevancy recurrence, or all others. Disassembling takes minutes: each function is one test's alone."""
    subprocess.run([CUOBJDUMP, "-xelf", f".{arch}.cubin", LIBRARY], cwd=folder, check=True, capture_output=True)
    for part in sorted(folder.glob(f"*.{arch}.cubin")):
        if (RELEVANCY in part.read_bytes()) == relevancy:
            yield from read_functions(dump("-sass", part))
