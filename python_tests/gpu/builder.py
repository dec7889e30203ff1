"""Builds test libraries of kernels with ninja in build/interpreter, and recompiles only what has changed."""

import fcntl
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = Path("build/interpreter")
INTERPRETER = tuple(f"csrc/interpreter/{name}.cpp -fno-sanitize=thread" for name in ("fibers", "primitives"))
FLAGS = ["-std=c++20", "-O2", "-g1", "-fPIC", "-Wall", "-Icsrc"]


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "c++"))


def with_torch() -> tuple[list[str], list[str]]:
    """Compiler and linker flags for sources that register operators."""
    (folder,) = importlib.util.find_spec("torch").submodule_search_locations
    flags = ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-fvisibility=hidden", "-Ibuild/ninja"]
    return [*flags, "-isystem", f"{folder}/include"], [
        f"-L{folder}/lib",
        "-Wl,--no-as-needed",
        "-ltorch",
        "-ltorch_cpu",
    ]


def build(
    name: str, sources: Sequence[str], flags: Sequence[str] = (), link: Sequence[str] = (), interpret: bool = True,
    file: str = "",
) -> Path:  # fmt: skip
    """Builds a shared library from sources, whose paths are relative to the root, in a folder of its own, and returns
    its path. Flags for a single source follow its path, as in "csrc/some.cpp -DSOME". With `interpret`, kernels are
    also compiled for the host."""
    folder = BUILD / name
    own = ["-DRNNKERN_INTERPRET"] if interpret else []
    command = [*compiler(), *FLAGS, *own, *shlex.split(os.environ.get("RNNKERN_CXXFLAGS", "")), *flags]
    lines = [f"builddir = {folder}", "rule cpp"]
    lines += [
        f" command = {shlex.join(command)} $own -MD -MF $out.d -c $in -o $out",
        " depfile = $out.d",
        " deps = gcc",
    ]
    lines += ["rule link", f" command = {shlex.join([*compiler(), '-shared'])} -o $out $in {shlex.join(link)}"]
    objects = []
    for source in sources:
        path, _, own = source.partition(" ")
        objects.append(f"{folder}/{re.sub('[^-./=a-z0-9_]+', '_', source, flags=re.I)}.o")
        lines += [f"build {objects[-1]}: cpp {path}", f" own = {own}"]
    library = folder / (file or f"{name}.so")
    lines += [f"build {library}: link {' '.join(objects)}"]

    return run_ninja(folder, lines, library)


def libraries(*names: str) -> str:
    """Libraries of the compiler, to be loaded before Python's; empty if one is missing."""
    found = []
    for name in names:
        command = [*compiler(), f"-print-file-name={name}.so"]
        found.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    return " ".join(found) if all(map(os.path.isabs, found)) else ""


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs Python in the root, with changes of the environment."""
    command, env = [sys.executable, *arguments], os.environ | environment
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)


def run_ninja(folder: Path, lines: Sequence[str], made: Path) -> Path:
    """Runs ninja on these lines, with a lock so that only one process runs in a folder, and returns the path of the
    result."""
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    with open(ROOT / folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (ROOT / folder / "build.ninja").write_text("\n".join([*lines, ""]))
        jobs = ["-j", os.environ["MAX_JOBS"]] if "MAX_JOBS" in os.environ else []
        command = [sys.executable, "-m", "ninja", "-f", f"{folder}/build.ninja", *jobs]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{made} does not build\n{done.stdout}{done.stderr}")
    return ROOT / made
