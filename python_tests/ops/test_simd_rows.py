"""Partial vector loads and stores at the ends of rows, tested directly.

Tests of operators would rarely notice access to one byte too many."""

import os
import shlex
import subprocess
from pathlib import Path

from python_tests.tiers import each_level

ROOT = Path(__file__).parents[2]
SOURCE = "python_tests/ops/simd_rows.cpp"


def compiled(level: str, program: Path) -> Path:
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    flags = ["-std=c++20", "-O2", "-Wall", "-Icsrc", f"-DRNNKERN_SIMD_LEVEL={level}"]
    command = [*compiler, *flags, SOURCE, "-o", program]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{SOURCE} does not build: {done.stderr}"
    return program


@each_level
def test_the_first_lanes_alone_are_read_and_written(level, tmp_path):
    done = subprocess.run([compiled(level, tmp_path / "rows")], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout or f"ended by signal {-done.returncode}"
