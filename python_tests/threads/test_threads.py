"""The CPU kernels have no races, and every team returns the same bits: they run under the thread sanitizer, without
torch, because it would report races in libgomp's waiting code. `make sanitize` runs all SIMD levels."""

import os
import subprocess
from pathlib import Path

import pytest

from python_tests.tiers import LEVELS

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "python_tests/threads/driver.cpp"
FLAGS = ["-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-pthread", "-Icsrc"]
SOURCE = f"""
#include "recurrence/cpu/includes.h"
#include "common/simd_target.h"
#include "recurrence/cpu/kernels.h"
#include "{DRIVER}"
"""


@pytest.mark.proof
@pytest.mark.parametrize("level", LEVELS if "RNNKERN_SANITIZE" in os.environ else LEVELS[-1:])
def test_no_races_and_the_same_bits_for_every_team(level, tmp_path):
    made = tmp_path / "driver"
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
