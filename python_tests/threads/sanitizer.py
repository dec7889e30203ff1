"""Builds the driver for a SIMD level with the thread sanitizer and runs it, without torch: the sanitizer would report
races in libgomp's waiting code."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "python_tests/threads/driver.cpp"
FLAGS = ["-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-pthread", "-Icsrc"]


SOURCE = f"""
#include "recurrence/cpu/includes.h"
#include "common/simd_target.h"
#include "recurrence/cpu/kernels.h"
#include "{DRIVER}"
"""


def check_level(level: str, folder: Path) -> None:
    """Fails if several threads return other bits than one thread, or if there is a race."""
    made = folder / "driver"
    build = subprocess.run(
        ["c++", *FLAGS, f"-DRNNKERN_SIMD_LEVEL={level}", "-x", "c++", "-", "-o", made], cwd=ROOT, input=SOURCE,
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if "tsan" in build.stderr:
        pytest.skip("no thread sanitizer")
    assert build.returncode == 0, build.stderr
    first_alone = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run([made], env=first_alone, check=False, capture_output=True, text=True)
    assert done.stdout == "0 differ\n", done.stdout + done.stderr[:4000]
    assert done.returncode == 0, done.stderr[:4000]
