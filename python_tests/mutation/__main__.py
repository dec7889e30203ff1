"""Mutation tests: applies the changes of mutants.py one at a time to a copy of the tree, and prints those that no test
detects.

    python -m python_tests.mutation [--jobs N] [--only WORD] [--quick]

A failed test, a crash or a hang kills a mutant. The exit status is 1 if a mutant survives without an explanation in the
table, if one with an explanation is killed, or if one cannot be judged: its text is not in the sources, it does not
build, or its tests also fail on the original sources. A mutant of a SIMD level is built and tested at that level, and
skipped if the processor does not support it. With --quick only tests of `make test` run, and the exit status is 1 if
they kill less than 90 % of the mutants in CPU kernels and Python.
"""

import argparse
import contextlib
import json
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

import rnnkern  # noqa: F401  (registers what the library says of the processor)
from python_tests.mutation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIES = ROOT / "build/mutate"
TAKEN = ("csrc", "rnnkern", "python_tests", "perf", "setup.py", "pyproject.toml", "README.md", "LICENSE")
BUILT_HERE = (".h", ".cpp")
NO_TESTS = 5  # pytest's exit status
LEAST = 0.9  # with --quick
FAMILIES = {"orthogonal", "recurrence", "relational", "relevancy", "scan"}
SIMD_LEVELS = ("plain", "avx2", "avx512", "avx512_bf16", "amx")  # each level includes the previous ones
LONGEST = 900  # seconds after which a test counts as hanging
ENVIRONMENT = {
    "PYTHONPATH": ".",
    "RNNKERN_CXXFLAGS": "-O0",  # compiling takes longer than the tests
    "OMP_NUM_THREADS": "1",  # the copies share the cores
    "OMP_WAIT_POLICY": "passive",
}


class Copy(NamedTuple):
    """A copy of the tree, with a build for one SIMD level."""

    folder: Path
    level: str

    @property
    def environment(self) -> dict[str, str]:
        # RNNKERN_SIMD avoids the warning at import that the processor supports more.
        return ENVIRONMENT | {"RNNKERN_SIMD_LEVELS": self.level, "RNNKERN_SIMD": self.level}


def processor_levels() -> tuple[str, ...]:
    """The SIMD levels that this processor supports."""
    facts = json.loads(torch.ops.rnnkern.build_info())
    return SIMD_LEVELS[: SIMD_LEVELS.index(facts["processor_simd_level"]) + 1]


def sources() -> dict[Path, str]:
    """The files of the tree, by relative path."""
    paths = [p for name in TAKEN for p in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))]
    endings = {".py", ".h", ".cpp", ".cuh", ".toml", ".md", ".txt", ""}
    return {p.relative_to(ROOT): p.read_text() for p in paths if p.is_file() and p.suffix in endings}


def run(copy: Copy, *command: str, longest: float | None = None, **env: str) -> tuple[int | str, str]:
    """The exit status, or "hang" after ``longest`` seconds, and the output. Remaining child processes are killed."""
    process = subprocess.Popen(
        command, cwd=copy.folder, env=os.environ | copy.environment | env, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=longest)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return "hang", said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def build(copy: Copy, jobs: int = 1) -> str:
    """The output of a failed build; empty on success."""
    status, said = run(copy, sys.executable, "setup.py", "-q", "build_ext", "--inplace", MAX_JOBS=str(jobs))
    return said if status else ""


def build_first(copy: Copy, file: str) -> bool:
    """Compiles what a change of a file has changed in its own family, of the recurrence's CPU kernels only those for
    float64, and links it with the other, unchanged objects; this takes a quarter of the time or less. Returns whether
    it succeeded."""
    ninja = [sys.executable, "-m", "ninja", "-f", "build/ninja/build.ninja"]
    status, commands = run(copy, *ninja, "-t", "commands", "-s", "build/ninja/_C.so")
    if status or not commands.strip():
        return False
    link = shlex.split(commands.strip().splitlines()[-1])
    objects = [name for name in link if name.endswith(".o")]
    family = file.split("/")[0].replace("cells", "recurrence")
    others = "|".join(FAMILIES - {family}) if family in FAMILIES else "none"
    skipped = rf"csrc/({others})/|recurrence/cpu/level_(?!f64|strips|tangent)" + ("" if "cuda" in file else "|/cuda/")
    chosen = [name for name in objects if not re.search(skipped, name)]
    link[link.index("-o") + 1] = "rnnkern/_C.abi3.so"
    return run(copy, *ninja, "-j", "1", *chosen)[0] == 0 and run(copy, *link)[0] == 0


def test(copy: Copy, tests: tuple[str, ...], quick: bool) -> tuple[int | str, str]:
    tier = ("-m", "not proof") if quick else ()
    return run(
        copy, sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tier, *tests, longest=LONGEST
    )


def make_copy(folder: Path, texts: dict[Path, str]) -> None:
    """Writes only files that differ, so that object files of an earlier run are reused."""
    for path in [p for name in TAKEN for p in (folder / name).rglob("*") if p.is_file()]:
        if path.suffix != ".so" and path.relative_to(folder) not in texts:
            path.unlink()
    for path, text in texts.items():
        place = folder / path
        if not place.exists() or place.read_text() != text:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)


def fate(mutant: Mutant, copy: Copy, text: str, quick: bool) -> tuple[str, str]:
    """The result ("killed", "survived" or "invalid") and the reason."""
    place, polluted = copy.folder / mutant.place, False
    place.write_text(text.replace(mutant.old, mutant.new))
    try:
        if mutant.file.endswith(BUILT_HERE) and not mutant.built_by_its_tests:
            if build_first(copy, mutant.file) and test(copy, mutant.tests, quick)[0] == 1:
                return "killed", "a test"
            if said := build(copy):
                return "invalid", said[-2000:]
            polluted = True
        status, said = test(copy, mutant.tests, quick)
        if status == 0 or (quick and status == NO_TESTS):
            return "survived", mutant.explained or ("" if status == 0 else "no test of this tier")
        if status in (2, 3, 4, NO_TESTS) or "does not build" in said:
            return "invalid", said[-2000:]
        return "killed", {"hang": "a hang", 1: "a test"}.get(status, "a crash")
    finally:
        place.write_text(text)
        if polluted:  # the next mutant would link these objects
            build(copy)


def unfit(mutants: list[Mutant], texts: dict[Path, str], copy: Copy, jobs: int, quick: bool) -> dict[Mutant, str]:
    """Mutants that cannot be judged, with the reason."""
    found = {}
    for mutant in mutants:
        text = texts.get(Path(mutant.place), "")
        if text.count(mutant.old) != 1:
            found[mutant] = f"{mutant.old!r} stands there {text.count(mutant.old)} times, not once"
    selections = sorted({mutant.tests for mutant in mutants})
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda tests: test(copy, tests, quick), selections)
        for tests, (status, said) in zip(tqdm(selections, desc="unbroken"), results, strict=True):
            if status != 0 and not (quick and status == NO_TESTS):
                why = f"unbroken, {' '.join(tests)} ends with {status}: {said[-2000:]}"
                found |= {mutant: why for mutant in mutants if mutant.tests == tests}
    return found


def judge(
    mutants: list[Mutant], level: str, texts: dict[Path, str], jobs: int, quick: bool
) -> tuple[Counter, dict[Mutant, str]]:
    """Numbers of mutants by result and explanation, and the faults; all mutants have one SIMD level."""
    copies = [Copy(COPIES / level / str(number), level) for number in range(min(jobs, len(mutants)))]
    make_copy(copies[0].folder, texts)
    if said := build(copies[0], jobs):
        raise SystemExit(f"the copy for {level} does not build\n{said}")
    faults = {m: f"invalid: {why}" for m, why in unfit(mutants, texts, copies[0], len(copies), quick).items()}
    for copy in copies[1:]:
        shutil.rmtree(copy.folder, ignore_errors=True)
        shutil.copytree(copies[0].folder, copy.folder)

    free = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def judge_one(mutant: Mutant) -> tuple[Mutant, str, str, float]:
        copy, begun = free.get(), time.monotonic()
        try:
            return mutant, *fate(mutant, copy, texts[Path(mutant.place)], quick), time.monotonic() - begun
        finally:
            free.put(copy)

    outcomes = Counter()
    judged = [mutant for mutant in mutants if mutant not in faults]
    with ThreadPoolExecutor(len(copies)) as pool, tqdm(total=len(judged), unit="mutant", desc=level) as bar:
        for done in as_completed([pool.submit(judge_one, mutant) for mutant in judged]):
            mutant, outcome, by, seconds = done.result()
            tqdm.write(f"{outcome:8} {seconds:4.0f} s  {mutant.file:32} {mutant.breaks:52} {by}")
            outcomes[outcome, bool(mutant.explained)] += 1
            if outcome == "invalid" or (outcome == "killed") == bool(mutant.explained):
                faults[mutant] = outcome
            bar.update()
    return outcomes, faults


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m python_tests.mutation")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), help="copies at work at a time")
    arguments.add_argument("--only", default="", help="mutants with this in their level, file or description")
    arguments.add_argument("--every", type=int, default=1, metavar="N", help="a sample: every Nth of them")
    arguments.add_argument("--quick", action="store_true", help="the tests of `make test` alone, on what they run")
    wanted = arguments.parse_args()
    quick, texts = wanted.quick, sources()
    mutants = [m for m in MUTANTS if wanted.only in f"{m.level} {m.file} {m.breaks}" and not (quick and m.for_a_gpu)]
    mutants = mutants[:: wanted.every]
    if not mutants:
        raise SystemExit(f"no mutant has {wanted.only!r} in its level, file or description")

    here, outcomes, faults = processor_levels(), Counter(), {}
    for level in dict.fromkeys(mutant.level for mutant in mutants):
        at_level = [mutant for mutant in mutants if mutant.level == level]
        if level in here:
            ended, wrong = judge(at_level, level, texts, wanted.jobs, quick)
            outcomes, faults = outcomes + ended, faults | wrong
        else:
            for mutant in at_level:
                print(f"{mutant.file}: {mutant.breaks}: not judged: this processor has no {level}")
    for mutant, fault in faults.items():
        print(f"{mutant.file}: {mutant.breaks}: {fault}")
    killed, survived = outcomes["killed", False], outcomes["survived", False]
    share = killed / max(killed + survived, 1)
    print(
        f"{len(mutants)} mutants: {killed} killed, {survived} survived ({share:.1%} killed), "
        f"{outcomes['survived', True]} survived as the table explains, {len(mutants) - outcomes.total()} not judged"
    )
    invalid = any(fault.startswith("invalid") for fault in faults.values())
    return 1 if invalid or (share < LEAST if quick else faults) else 0


if __name__ == "__main__":
    sys.exit(main())
