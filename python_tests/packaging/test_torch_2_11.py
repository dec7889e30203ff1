"""The headers of the oldest supported PyTorch compile every source; test_wheel.py has the symbols that it exports.

The wheel is that of RNNKERN_TORCH_2_11_WHEEL. Without this variable pip downloads it, half a gigabyte for Linux, and
caches it.
"""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from python_tests.packaging.conftest import ROOT

pytestmark = pytest.mark.proof
VERSION = "2.11.0"
SECONDS = 180
CSRC = ROOT / "csrc"


@pytest.fixture(scope="module")
def torch_wheel(tmp_path_factory) -> Path:
    if given := os.environ.get("RNNKERN_TORCH_2_11_WHEEL"):
        return Path(given)
    folder = tmp_path_factory.mktemp("torch")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder]
    try:
        subprocess.run([*command, f"torch=={VERSION}"], check=True, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip does not get torch {VERSION}: {error.stderr.strip().splitlines()[-1]}")
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip does not get torch {VERSION} within {SECONDS} s; RNNKERN_TORCH_2_11_WHEEL=PATH names a wheel")
    (wheel,) = folder.iterdir()
    return wheel


@pytest.fixture(scope="module")
def headers(torch_wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("headers")
    with zipfile.ZipFile(torch_wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith("torch/include/")])
    (folder / "build_facts.h").write_text('#define RNNKERN_BUILD_FACTS "{}"\n')
    (folder / "build_levels.h").write_text("#define RNNKERN_BUILT_LEVELS(X) X(plain)\n")
    return folder


def includes_torch(path: Path) -> bool:
    """Whether a file includes PyTorch's headers, directly or through headers of the package."""
    text = path.read_text()
    ours = [CSRC / name for name in re.findall(r'#include "([^"]+/[^"]+)"', text)]
    return "#include <torch/" in text or any(map(includes_torch, ours))


SOURCES = [str(path.relative_to(ROOT)) for path in sorted(CSRC.rglob("*.c*")) if includes_torch(path)]


@pytest.mark.parametrize("source", SOURCES)
def test_sources_compile(source, headers):
    """Sources for the interpreter are compiled with its flags."""
    mode = ["-DRNNKERN_INTERPRET"] if "interpreter" in source else []
    flags = ["-std=c++20", "-fvisibility=hidden", "-fopenmp", *mode]
    flags += ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-DPy_LIMITED_API=0x030b0000", "-Icsrc", f"-I{headers}"]
    system = [f"{headers}/torch/include", sysconfig.get_path("include")]
    command = [os.environ.get("CXX", "c++"), "-fsyntax-only", *flags, *(f"-isystem{folder}" for folder in system)]
    done = subprocess.run([*command, source], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
