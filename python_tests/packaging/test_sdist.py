"""The source distribution contains everything that git tracks, and a build from it starts."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from python_tests.packaging.conftest import ROOT, succeed

IGNORED = (
    "build/ninja/build.ninja",
    "rnnkern/_C.abi3.so",
    "python_tests/__pycache__/tiers.cpython-311.pyc",
    "perf/results/a/logs/b.txt",
)


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout")
    return [name for name in succeed("git", "ls-files", folder=ROOT).stdout.splitlines() if (ROOT / name).exists()]


@pytest.fixture(scope="module")
def unpacked(tracked, tmp_path_factory) -> Path:
    """An unpacked source distribution, made from a copy of the tracked files, so that the checkout stays clean, and of
    some files that git ignores."""
    pytest.importorskip("build.__main__", reason="build is not installed: `make wheel` installs it")
    folder = tmp_path_factory.mktemp("sdist")
    for name in [*tracked, *IGNORED]:
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        if name in IGNORED:
            (folder / "tree" / name).touch()
        else:
            shutil.copy2(ROOT / name, folder / "tree" / name)
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--skip-dependency-check"]
    succeed(*command, "--outdir", folder / "dist", folder=folder / "tree")
    (archive,) = (folder / "dist").iterdir()
    with tarfile.open(archive) as files:
        files.extractall(folder / "unpacked", filter="data")
    (root,) = (folder / "unpacked").iterdir()
    return root


def test_it_has_what_git_tracks(unpacked, tracked):
    there = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert set(tracked) - there == set()
    added = {name for name in there - set(tracked) if not name.startswith("rnnkern.egg-info/")}
    assert added == {"PKG-INFO", "setup.cfg"}
    for name in ("LICENSE", "csrc/registration.cpp", "rnnkern/py.typed"):
        assert (unpacked / name).read_bytes() == (ROOT / name).read_bytes()


def test_a_build_from_it_starts(unpacked, tmp_path):
    """setup.py writes the ninja file, and ninja finds every source in it; nothing is compiled."""
    (tmp_path / "ninja.py").write_text("raise SystemExit('not now')")
    command = [sys.executable, "setup.py", "-q", "build_ext"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    build = subprocess.run(command, cwd=unpacked, env=environment, capture_output=True, text=True)
    assert "not now" in build.stderr
    planned = succeed(sys.executable, "-m", "ninja", "-n", "-f", "build/ninja/build.ninja", folder=unpacked)
    assert "link build/ninja/_C.so" in planned.stdout
