"""The kernels' machine code, compiled for these tests by nvcc, a file at a time, and as cuobjdump prints it.

For sm_90 all but float16's, for sm_80 and sm_100 the block kernels of bfloat16: the others are the same templates for
another type or target, and each file takes half a minute."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from python_tests.gpu.builder import nvcc, run_ninja

FLAGS = ["-std=c++20", "-O3", "-Icsrc"]
BUILD = Path("build/machine_code")


def find_cuobjdump() -> str | None:
    triton = importlib.util.find_spec("triton")
    folders = [os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"]
    if triton and triton.origin:
        folders.append(str(Path(triton.origin).parent / "backends/nvidia/bin"))
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(folders))


CUOBJDUMP = find_cuobjdump()


def needs_compiler(test):
    """Of the proof tier, where there is what it takes."""
    missing = "no nvcc" if nvcc() is None else "no cuobjdump"
    return pytest.mark.proof(pytest.mark.skipif(nvcc() is None or CUOBJDUMP is None, reason=missing)(test))


def cubin(source: str, arch: str) -> Path:
    """The path of what nvcc makes of a file below csrc; compiled anew where the file or a header has changed."""
    made = BUILD / arch / f"{Path(source).stem}.cubin"
    command = f"{nvcc()} -cubin -arch={arch} {' '.join(FLAGS)} -MD -MF $out.d -o $out $in"
    rule = f"rule cu\n command = {command}\n depfile = $out.d\n deps = gcc"
    folder = BUILD / arch / Path(source).stem
    return run_ninja(folder, [f"builddir = {folder}", rule, f"build {made}: cu csrc/{source}"], made)


def dump(*arguments: str | Path) -> Iterator[str]:
    """The lines that cuobjdump prints."""
    with subprocess.Popen(
        [CUOBJDUMP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield from process.stdout
        errors = process.stderr.read()
    assert process.returncode == 0, errors
