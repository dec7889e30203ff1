"""Builds and installs the package from a copy of its sources, once in each way."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


QUICK = ("test_build_info", "test_programs", "test_sass")
"""Files with tests that `make test` runs; the others build and install."""


def pytest_collection_modifyitems(items):
    for item in items:
        if "python_tests/packaging/" in item.nodeid and item.path.stem not in QUICK:
            item.add_marker(pytest.mark.proof)


def succeed(*command: str | Path, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Runs a command, which must succeed."""
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def shared(request, tmp_path_factory) -> Path:
    """A folder of this test run, the same in all its processes."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if hasattr(request.config, "workerinput") else folder


@pytest.fixture(scope="session")
def once(shared):
    """Creates a folder in the first process that requests it; the others wait."""

    def make(name: str, fill: Callable[[Path], None]) -> Path:
        folder, begun = shared / name, shared / f"{name}.begun"
        with locked(shared / f"{name}.lock"):
            if not folder.exists():
                begun.mkdir()
                fill(begun)
                begun.rename(folder)
        return folder

    return make


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def sources(once) -> Path:
    """A copy of the files that a build reads, with the object files of the last build, so that little is recompiled."""

    def copy(folder: Path) -> None:
        for name in ("Makefile", "setup.py", "pyproject.toml", "LICENSE", "README.md"):
            shutil.copy2(ROOT / name, folder)
        for name in ("csrc", "rnnkern", "build/ninja", "python_tests/packaging"):
            if (ROOT / name).exists():
                ignored = shutil.ignore_patterns("*.so", "__pycache__")
                shutil.copytree(ROOT / name, folder / name, ignore=ignored)

    return once("sources", copy)


@pytest.fixture(scope="session")
def pip(sources, shared):
    """Runs pip on the copy, without isolation and with the given environment variables; returns its output."""

    def run(command: str, *arguments: str | Path, **environment: str) -> str:
        options = ("-v", "--no-deps", "--no-build-isolation", *arguments)
        with locked(shared / "pip.lock"):  # one process at a time
            done = succeed(sys.executable, "-m", "pip", command, sources, *options, folder=ROOT, **environment)
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="session")
def wheel(sources, shared, once) -> Path:
    """The result of `make wheel` in the copy, for the SIMD levels of this run, whose object files exist."""
    pytest.importorskip("auditwheel", reason="auditwheel is not installed: `make wheel` installs it")
    there = Path(sys.prefix, ".wheel")  # tools that are already installed are used
    command = ["make", "wheel", f"VENV={sys.prefix}", f"--assume-old={there}"]
    levels = {"RNNKERN_SIMD_LEVELS": os.environ.get("RNNKERN_SIMD_LEVELS", "host")}

    def build(folder: Path) -> None:
        with locked(shared / "pip.lock"):
            succeed(*command, folder=sources, **levels)
        for made in (sources / "dist").iterdir():
            made.rename(folder / made.name)

    (built,) = once("wheel", build).iterdir()
    return built


@pytest.fixture(scope="session")
def pure(pip, once) -> Path:
    """The folder of a pure-Python installation."""
    return once("pure", lambda folder: pip("install", "--target", folder, RNNKERN_CPP="0"))


@pytest.fixture
def python():
    """Runs Python code in a separate process, with `rnnkern` from the given folder; returns its output."""

    def run(code: str, folder: Path = ROOT, **environment: str) -> str:
        code = f"import rnnkern\nassert rnnkern.__file__.startswith({str(folder)!r})\n{code}"
        return succeed(sys.executable, "-c", code, folder=Path("/"), PYTHONPATH=str(folder), **environment).stdout

    return run
