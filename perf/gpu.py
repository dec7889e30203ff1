"""Runs everything that needs a GPU, in stages and without network, in calls of at most ten minutes: ``make gpu``.

``python -m perf.gpu --help``. The stages are defined in ``perf/gpu_stages.py``, and their output goes to ``logs``. Logs
and results end up in one archive, which is written after every stage, so that an aborted run leaves the results so far.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from perf import gpu_stages, gpu_tables, record
from perf.gpu_stages import CALL_SECONDS, CALLS, NEEDED, RESERVED, STAGES, Command, Stage, Target

GRACE = 5
"""Seconds for an interrupted command to report its position; part of the limit of its stage."""
TAIL = 25
LOG_BYTES = 2**18
POLL = 0.05


class Result(NamedTuple):
    stage: str
    seconds: float
    said: str
    failed: tuple[Path, ...] = ()  # logs of failed commands; the folder of logs for a command that did not begin


class Running(NamedTuple):
    command: Command
    process: subprocess.Popen
    log: Path


def run(stages: Sequence[Stage], logs: Path, total: float) -> Iterator[Result]:
    """Runs the stages in order and yields the result of each. A stage may use the time that earlier stages left
    over."""
    begun = time.monotonic()
    due, stopped = 0.0, None
    for stage in stages:
        due += stage.limit
        until = begun + min(due, total)
        if stopped:
            yield Result(stage.name, 0.0, f"not run, since {stopped} has failed")
        elif stage.lacks:
            yield Result(stage.name, 0.0, f"left out: {stage.lacks} is absent")
        elif until <= time.monotonic():
            yield Result(stage.name, 0.0, "not run: the time is up", (logs,))
        else:
            result = run_one(stage, logs, until)
            if result.failed and stage.name in NEEDED:
                stopped = stage.name
            yield result


def run_one(stage: Stage, logs: Path, until: float) -> Result:
    """Runs all commands of a stage, each with a log of its own, and kills all their child processes at the end."""
    begun = time.monotonic()
    last = max(until - GRACE, begun)
    waiting = stage.commands(until - begun)
    running: list[Running] = []
    said, failed = [], []
    logs.mkdir(parents=True, exist_ok=True)
    try:
        while waiting or running:
            while waiting and len(running) < stage.at_once:
                running.append(start(waiting.pop(0), stage, logs))
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                kill(job)
                if job.process.returncode:
                    said.append(f"{job.command.name} failed with {job.process.returncode}")
                    failed.append(job.log)
            if (waiting or running) and time.monotonic() >= last:
                interrupt(running)
                said += [f"{job.command.name} was stopped at the limit" for job in running]
                said += [f"{command.name} did not begin" for command in waiting]
                failed += [job.log for job in running] or [logs]
                break
            time.sleep(POLL)
    finally:
        for job in running:
            kill(job)
    return Result(stage.name, time.monotonic() - begun, ", ".join(said) or "passed", tuple(failed))


def start(command: Command, stage: Stage, logs: Path) -> Running:
    # A shell starts what runs in the background with Ctrl-C ignored, which processes inherit.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    paths = [str(record.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    environment |= {"PYTHONFAULTHANDLER": "1", "RNNKERN_GPU_TESTS": "cuda"} | stage.environment
    log = logs / f"{stage.name}-{command.name}.log"
    with log.open("wb") as file:
        file.write(f"$ {shlex.join(command.arguments)}\n".encode())
        file.flush()
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(
            command.arguments, cwd=record.ROOT, env=environment, start_new_session=True, **streams
        )
    return Running(command, process, log)


def interrupt(running: Sequence[Running]) -> None:
    """Sends Ctrl-C, on which pytest prints its tracebacks, and waits until all processes have ended, for at most
    ``GRACE`` seconds."""
    for job in running:
        signal_all(job, signal.SIGINT)
    deadline = time.monotonic() + GRACE
    while any(job.process.poll() is None for job in running) and time.monotonic() < deadline:
        time.sleep(POLL)


def kill(job: Running) -> None:
    """Kills a process with its children, even if it has ended itself."""
    signal_all(job, signal.SIGKILL)
    job.process.wait()
    if job.log.stat().st_size > LOG_BYTES:
        job.log.write_bytes(b"...\n" + job.log.read_bytes()[-LOG_BYTES:])


def signal_all(job: Running, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.process.pid, number)


def archive(folder: Path, path: Path) -> None:
    """Writes the folder into one file; the file is complete at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with tarfile.open(partial, "w:gz") as tar:
        tar.add(folder, arcname=path.name.removesuffix(".tar.gz"))
    partial.replace(path)


def describe(stages: Sequence[Stage]) -> Iterator[str]:
    """The commands that a run would execute."""
    for stage in stages:
        given = " ".join(f"{name}={shlex.quote(value)}" for name, value in stage.environment.items())
        yield f"{stage.name}: at most {stage.limit:g} s, {stage.at_once} at once{'; ' + given if given else ''}"
        if stage.lacks:
            yield f"    left out: {stage.lacks} is absent"
        yield from (f"    {shlex.join(command.arguments)}" for command in stage.commands(stage.limit))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--call", type=int, choices=list(CALLS), help="the stages of this call")
    which.add_argument("--stages", nargs="+", choices=STAGES, help="these alone")
    parser.add_argument("--out", type=Path, help="folder of the archive; default: build/gpu")
    parser.add_argument("--quick", action="store_true", help="tiny measurements")
    parser.add_argument(
        "--dry-run", action="store_true",
        help="say what would run, compile a few kernels and start them on a stand-in for the driver; needs no GPU",
    )  # fmt: skip
    return parser.parse_args(argv)


def lacks(stages: Sequence[str]) -> str | None:
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} sees no CUDA device"
    compiler = shlex.split(os.environ.get("CXX", "c++"))[0]
    if "build" in stages and not shutil.which(compiler):
        return f"the C++ compiler {compiler!r} is not on PATH"
    return None


def main(argv: Sequence[str]) -> None:
    begun, since = time.monotonic(), record.now()
    chosen = parse(argv)
    names = list(CALLS[chosen.call]) if chosen.call else chosen.stages
    if not chosen.dry_run and (missing := lacks(names)):
        sys.exit(f"make gpu needs a CUDA device and a C++ compiler: {missing}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the results so far are archived
    name = f"call{chosen.call}" if chosen.call else "stages"
    base = record.ROOT / "build" / "gpu"
    folder, packed = base / name, (chosen.out or base).resolve() / f"{name}.tar.gz"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "logs").mkdir(parents=True)
    stages = gpu_stages.plan(names, Target(folder, chosen.call, chosen.quick))
    if chosen.dry_run:
        text = "\n".join(describe(stages))
        (folder / "logs" / "plan.log").write_text(f"{text}\n")
        print(text, flush=True)
        stages = gpu_stages.rehearsal()
    else:
        device = record.device_name(torch.device("cuda", 0))
        print(f"{device}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}")
        print(*gpu_stages.absent(), sep="\n", flush=True)
    failed = []
    try:
        for result in run(stages, folder / "logs", CALL_SECONDS - RESERVED):
            print(f"{result.stage:<12}{result.seconds:>7.1f} s  {result.said}", flush=True)
            for log in result.failed:
                lines = log.read_text(errors="replace").splitlines()[-TAIL:] if log.is_file() else []
                print(*(f"    {line[:200]}" for line in lines), sep="\n", flush=True)
            if result.failed:
                failed.append(result.stage)
            archive(folder, packed)
    finally:
        archive(folder, packed)
    if {"tables", "memory"} & set(names) and not chosen.dry_run:
        print("", gpu_tables.text(folder, since), "", sep="\n")
    outcome = f"failed: {', '.join(failed)}" if failed else "all passed"
    print(f"{outcome}; {time.monotonic() - begun:.0f} s; {packed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(sys.argv[1:])
