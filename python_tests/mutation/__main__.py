"""Breaks the kernels in the ways of mutants.py, one at a time in a copy of the tree, and prints what the tests missed.

    python -m python_tests.mutation [--jobs N] [--only WORD]

A test that fails, a crash and a hang kill a mutant. Ends with 1 if one survives that the table does not explain, if one
that it explains is killed, or if one does not build.
"""

import argparse
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tqdm import tqdm

from python_tests.mutation.mutants import LEFT_OUT, MUTANTS, ONE_LEVEL, STUB, Mutant

ROOT = Path(__file__).parents[2]
COPIES = ROOT / "build/mutate"
TAKEN = ("csrc", "rnnkern", "python_tests", "perf", "setup.py", "pyproject.toml", "README.md", "LICENSE")
BUILT_HERE = (".h", ".cpp")
LONGEST = 900  # seconds: a test that takes longer hangs
ENVIRONMENT = {
    "PYTHONPATH": ".",
    "RNNKERN_CXXFLAGS": "-O0",  # kernels and interpreter: compilers take longer than tests
    "OMP_NUM_THREADS": "1",  # copies share the cores
    "OMP_WAIT_POLICY": "passive",
}


def broken(text: str, old: str, new: str, where: str) -> str:
    if text.count(old) != 1:
        raise SystemExit(f"{where}: {old!r} stands there {text.count(old)} times, not once")
    return text.replace(old, new)


def sources() -> dict[Path, str]:
    """The tree with one SIMD level, by relative path."""
    paths = [p for name in TAKEN for p in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))]
    endings = {".py", ".h", ".cpp", ".cu", ".toml", ".md", ".txt", ""}
    texts = {p.relative_to(ROOT): p.read_text() for p in paths if p.is_file() and p.suffix in endings}
    for file, old, new in ONE_LEVEL:
        texts[Path(file)] = broken(texts[Path(file)], old, new, file)
    return texts | {Path(file): STUB.format(level) for level, file in LEFT_OUT.items()}


def run(folder: Path, *command: str, **env: str) -> tuple[int | str, str]:
    """The exit status, or "hang", and what was said. What it began and left behind ends with it."""
    process = subprocess.Popen(
        command, cwd=folder, env=os.environ | ENVIRONMENT | env, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=LONGEST)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return "hang", said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def build(folder: Path, jobs: int = 1) -> str:
    """What the compiler says if it fails."""
    flags = {"RNNKERN_CUDA": "0", "MAX_JOBS": str(jobs)}
    status, said = run(folder, sys.executable, "setup.py", "-q", "build_ext", "--inplace", **flags)
    return said if status else ""


def test(folder: Path, tests: tuple[str, ...]) -> tuple[int | str, str]:
    return run(folder, sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests)


def make_copy(folder: Path, texts: dict[Path, str]) -> None:
    """Writes what differs alone: objects of an earlier run serve again."""
    for path in [p for name in TAKEN for p in (folder / name).rglob("*") if p.is_file()]:
        if path.suffix != ".so" and path.relative_to(folder) not in texts:
            path.unlink()
    for path, text in texts.items():
        place = folder / path
        if not place.exists() or place.read_text() != text:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)


def fate(mutant: Mutant, folder: Path, text: str) -> tuple[str, str]:
    """ "killed", "survived" or "invalid", and by what."""
    place = folder / mutant.place
    place.write_text(broken(text, mutant.old, mutant.new, mutant.file))
    try:
        if mutant.file.endswith(BUILT_HERE) and not mutant.for_a_gpu and (said := build(folder)):
            return "invalid", said[-2000:]
        status, said = test(folder, mutant.tests)
        if status in (2, 3, 4, 5) or "does not build" in said:
            return "invalid", said[-2000:]
        if status == 0:
            return "survived", mutant.explained
        return "killed", {"hang": "a hang", 1: "a test"}.get(status, "a crash")
    finally:
        place.write_text(text)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m python_tests.mutation")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), help="copies at work at a time")
    arguments.add_argument("--only", default="", help="mutants with this in their file or description")
    wanted = arguments.parse_args()
    texts = sources()
    for mutant in MUTANTS:
        broken(texts[Path(mutant.place)], mutant.old, mutant.new, mutant.file)
    mutants = [mutant for mutant in MUTANTS if wanted.only in f"{mutant.file} {mutant.breaks}"]
    if not mutants:
        raise SystemExit(f"no mutant has {wanted.only!r} in its file or description")

    folders = [COPIES / str(number) for number in range(min(wanted.jobs, len(mutants)))]
    for folder in folders[:1]:
        make_copy(folder, texts)
        if said := build(folder, wanted.jobs):
            raise SystemExit(f"the copy does not build\n{said}")
    selections = sorted({mutant.tests for mutant in mutants})
    with ThreadPoolExecutor(len(folders)) as pool:
        results = pool.map(lambda tests: test(folders[0], tests), selections)
        for tests, (status, said) in zip(tqdm(selections, desc="unbroken"), results, strict=True):
            if status != 0:
                raise SystemExit(f"unbroken, {' '.join(tests)} ends with {status}\n{said[-4000:]}")
    for folder in folders[1:]:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(folders[0], folder)

    free = queue.SimpleQueue()
    for folder in folders:
        free.put(folder)

    def judge(mutant: Mutant) -> tuple[Mutant, str, str, float]:
        folder, begun = free.get(), time.monotonic()
        try:
            return mutant, *fate(mutant, folder, texts[Path(mutant.place)]), time.monotonic() - begun
        finally:
            free.put(folder)

    faults, survivors = [], 0
    with ThreadPoolExecutor(len(folders)) as pool, tqdm(total=len(mutants), unit="mutant") as bar:
        for done in as_completed([pool.submit(judge, mutant) for mutant in mutants]):
            mutant, outcome, by, seconds = done.result()
            tqdm.write(f"{outcome:8} {seconds:4.0f} s  {mutant.file:32} {mutant.breaks:52} {by}")
            survivors += outcome == "survived"
            if (outcome == "survived") != bool(mutant.explained) or outcome == "invalid":
                faults.append(f"{outcome}: {mutant.file}: {mutant.breaks}")
            bar.update()
    print(f"{len(mutants)} mutants, {survivors} survived, {len(faults)} not as the table has it", *faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
