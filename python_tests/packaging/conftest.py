"""Builds and installs the package from a copy of its sources, each way once."""

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


QUICK = ("test_build_info", "test_programs", "test_sass", "test_sass_relevancy")
"""Files of which `make test` has something: the others build and install."""


def pytest_collection_modifyitems(items):
    for item in items:
        if "python_tests/packaging/" in item.nodeid and item.path.stem not in QUICK:
            item.add_marker(pytest.mark.proof)


@pytest.fixture(scope="session")
def shared(request, tmp_path_factory) -> Path:
    """A folder of this run of tests, the same in all its processes."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if hasattr(request.config, "workerinput") else folder


@pytest.fixture(scope="session")
def once(shared):
    """Makes a folder in the process that asks first; the others wait for it."""

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
    """A copy of what the build reads, with the objects of the last build, so that little compiles again."""

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
    """Runs pip on the copy, without isolation and with the given environment variables; returns what it prints."""

    def run(command: str, *arguments: str | Path, **environment: str) -> str:
        with locked(shared / "pip.lock"):  # in one folder, one at a time
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
def wheel(sources, shared, once) -> Path:
    """What `make wheel` makes of the copy, for the levels of this run: its objects are there."""
    pytest.importorskip("auditwheel", reason="auditwheel is not installed: `make wheel` installs it")
    there = Path(sys.prefix, ".wheel")  # what is installed counts as it is
    command = ["make", "wheel", f"VENV={sys.prefix}", f"--assume-old={there}"]
    levels = {"RNNKERN_SIMD_LEVELS": os.environ.get("RNNKERN_SIMD_LEVELS", "host")}

    def build(folder: Path) -> None:
        with locked(shared / "pip.lock"):
            done = subprocess.run(
                command, cwd=sources, env=os.environ | levels, check=False, capture_output=True, text=True
            )
        assert done.returncode == 0, done.stdout + done.stderr
        for made in (sources / "dist").iterdir():
            made.rename(folder / made.name)

    (built,) = once("wheel", build).iterdir()
    return built


@pytest.fixture(scope="session")
def pure(pip, once) -> Path:
    """The folder of a pure-Python install."""
    return once("pure", lambda folder: pip("install", "--target", folder, RNNKERN_CPP="0"))


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
