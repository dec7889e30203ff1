"""Builds and installs the package from a copy of its sources, each way once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> Path:
    """A copy of what the build reads, with the objects of the last build, so that little compiles again."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy2(ROOT / name, copy)
    for name in ("csrc", "rnnkern", "build/ninja", "python_tests/packaging"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return copy


@pytest.fixture(scope="session")
def pip(sources):
    """Runs pip on the copy, without isolation and with the given environment variables; returns what it prints."""

    def run(command: str, *arguments: str | Path, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pip", command, sources, "-v", "--no-deps", "--no-build-isolation", *arguments],
            env=os.environ | environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="session")
def wheel(pip, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--wheel-dir", folder)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="session")
def pure(pip, tmp_path_factory) -> Path:
    """The folder of a pure-Python install."""
    folder = tmp_path_factory.mktemp("pure")
    pip("install", "--target", folder, RNNKERN_CPP="0")
    return folder


@pytest.fixture
def python():
    """Runs Python code in a process of its own, with `rnnkern` from the given folder; returns what it prints."""

    def run(code: str, folder: Path = ROOT, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", f"import rnnkern\nassert rnnkern.__file__.startswith({str(folder)!r})\n{code}"],
            env=os.environ | {"PYTHONPATH": str(folder)} | environment,
            cwd="/",
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
