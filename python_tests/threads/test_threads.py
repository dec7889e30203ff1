"""The thread sanitizer over the CPU kernels, on a driver without torch: libgomp's own waiting would look like races."""

import subprocess
from pathlib import Path

import pytest

import rnnkern

ROOT = Path(__file__).parents[2]
SOURCES = [
    "python_tests/threads/driver.cpp",
    *(f"csrc/recurrence/cpu_{level}.cpp" for level in ("plain", "avx2", "avx512", "avx512_bf16")),
]
FLAGS = ["-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-pthread", "-Icsrc"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads")
    objects = [folder / f"{Path(source).stem}.o" for source in SOURCES]
    compilers = [
        subprocess.Popen(["c++", *FLAGS, "-c", source, "-o", made], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for source, made in zip(SOURCES, objects, strict=True)
    ]
    said = [compiler.communicate()[1] for compiler in compilers]
    link = subprocess.run(
        ["c++", *FLAGS, *objects, "-o", folder / "driver"], check=False, capture_output=True, text=True
    )
    if "tsan" in link.stderr:
        pytest.skip("no thread sanitizer")
    assert link.returncode == 0, "".join(said) + link.stderr
    return folder / "driver"


@pytest.mark.parametrize("level", rnnkern.build_info()["simd_levels"])
def test_no_races_and_the_same_bits_for_every_team(driver, level):
    done = subprocess.run([driver, level], check=False, capture_output=True, text=True)
    assert done.stdout == "0 differ\n", done.stdout + done.stderr[:4000]
    assert done.returncode == 0, done.stderr[:4000]
