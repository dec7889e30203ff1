"""Builds test libraries of kernels with ninja, into build/interpreter: again only what changed, headers included.

For the host a C++ compiler reads the `.cu` files too, and the primitives are the interpreter's; for hardware nvcc does.
"""

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = Path("build/interpreter")
INTERPRETER = ("csrc/interpreter/fibers.cpp", "csrc/interpreter/primitives.cpp")
HOST = ["-std=c++20", "-O2", "-g1", "-fPIC", "-Wall", "-Icsrc", "-DRNNKERN_INTERPRET"]
HARDWARE = ["-std=c++20", "-O3", "-lineinfo", "-Xcompiler=-fPIC", "-Icsrc", "-DRNNKERN_SPIN_LIMIT=2000000000"]


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "c++"))


def nvcc() -> str | None:
    places = [f"{os.environ.get('CUDA_HOME')}/bin/nvcc", "nvcc", "/usr/local/cuda/bin/nvcc"]
    return next(filter(None, map(shutil.which, places)), None)


def build(
    name: str, sources: Sequence[str], flags: Sequence[str] = (), link: Sequence[str] = (), target: str = "host"
) -> Path:
    """The path of a shared library of the sources, which are relative to the root. The target is "host", or what nvcc
    takes for -arch."""
    folder = BUILD / name
    if target == "host":
        compile = {"cpp": [*compiler(), *HOST, *shlex.split(os.environ.get("RNNKERN_CXXFLAGS", "")), *flags]}
        compile["cu"] = [*compile["cpp"], "-x", "c++"]
        linker = [*compiler(), "-shared"]
    else:
        compile = {kind: [nvcc(), f"-arch={target}", *HARDWARE, *flags] for kind in ("cpp", "cu")}
        linker = [nvcc(), f"-arch={target}", "-shared"]
    lines = [f"builddir = {folder}"]
    for kind, command in compile.items():
        lines += [f"rule {kind}", f" command = {shlex.join(command)} -MD -MF $out.d -c $in -o $out"]
        lines += [" depfile = $out.d", " deps = gcc"]
    lines += ["rule link", f" command = {shlex.join(linker)} -o $out $in {shlex.join(link)}"]
    objects = [f"{folder}/{source}.o" for source in sources]
    lines += [
        f"build {made}: {Path(source).suffix[1:]} {source}" for source, made in zip(sources, objects, strict=True)
    ]
    library = folder / f"{name}.so"
    lines += [f"build {library}: link {' '.join(objects)}"]

    return run_ninja(folder, lines, library)


def run_ninja(folder: Path, lines: Sequence[str], made: Path) -> Path:
    """Runs ninja on these lines, one process at a time in a folder, and returns the path of what they make."""
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    with open(ROOT / folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (ROOT / folder / "build.ninja").write_text("\n".join([*lines, ""]))
        command = [sys.executable, "-m", "ninja", "-f", f"{folder}/build.ninja"]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{made} does not build\n{done.stdout}{done.stderr}")
    return ROOT / made
