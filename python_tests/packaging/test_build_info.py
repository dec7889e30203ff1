"""Build information of the installed package, and the choice of the SIMD level."""

import os
import re
import subprocess

import pytest
import torch

import rnnkern
from python_tests.packaging.conftest import ROOT
from rnnkern import _extension

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")

LEVELS = ["plain", "avx2", "avx512", "avx512_bf16", "amx"]
SHOW_LEVEL = "print(rnnkern.build_info()['simd_level'])"


def test_build_info():
    info = rnnkern.build_info()
    assert info["version"] == rnnkern.__version__
    assert info["commit"] is None or re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", info["commit"])
    assert info["compiler"]
    assert info["openmp"] >= 201511
    assert info["torch"].startswith("2.")
    assert info["simd_levels"] == [level for level in LEVELS if level in info["simd_levels"]]
    assert set(info["simd_levels"]) <= set(info["built_simd_levels"])
    assert info["simd_level"] in info["simd_levels"]


@pytest.mark.proof
@pytest.mark.parametrize(("source", "level"), [("level_f32", "avx512"), ("level_bf16", "avx512_bf16")])
def test_levels_that_this_processor_may_lack_are_sound(source, level):
    """The sources that differ where there are tiles or bfloat16 instructions."""
    flags = ["-std=c++20", "-fopenmp", "-Icsrc", f"-DRNNKERN_SIMD_LEVEL={level}", "-DRNNKERN_TILES=1"]
    command = [os.environ.get("CXX", "c++"), "-fsyntax-only", *flags, f"csrc/recurrence/cpu/{source}.cpp"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_set_simd_level_refuses_others():
    before, those = (rnnkern.build_info()[key] for key in ("simd_level", "simd_levels"))
    with pytest.raises(RuntimeError, match=f"`sse9` is not a level .* those are: {', '.join(those)}"):
        torch.ops.rnnkern.set_simd_level("sse9")
    assert rnnkern.build_info()["simd_level"] == before


def test_environment_names_the_level(python):
    for level in rnnkern.build_info()["simd_levels"]:
        assert python(SHOW_LEVEL, RNNKERN_SIMD=level) == f"{level}\n"


def test_environment_with_a_wrong_level(python):
    code = f"try: {SHOW_LEVEL}\nexcept RuntimeError as error: print(error)"
    assert "RNNKERN_SIMD: `sse9` is not a level that this processor has" in python(code, RNNKERN_SIMD="sse9")
