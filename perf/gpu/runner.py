"""Runs jobs in processes of their own, so that a lost CUDA context or a hang takes down one job and no other."""

import contextlib
import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from perf.gpu.plan import TOOLS, Stage

ROOT = Path(__file__).parents[2]
POLL = 0.1
LOG_BYTES = 2**16
SIGNS = (
    (r"([\w.]+):(\d+): .*Assertion `stuck` failed", "stuck in barrier {}:{}"),
    (r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|CUDA_ERROR_700", "illegal address"),
    (r"misaligned address", "misaligned address"),
    (r"illegal instruction", "illegal instruction"),
    (r"(unspecified launch failure)", "{}"),
    (r"NotStarted: (.*)", "does not launch: {}"),
    (r"rnnkern: (the CUDA kernel .* does not compile .*|cu\w+ of .*)", "does not launch: {}"),
)
"""What texts in a log mean, in order of what they explain."""
FOUND = re.compile(
    r"^=+ (Invalid|Uninitialized|Race|Error(?!.* access at nvjet_)|Program hit|Potential|Barrier).*", re.M
)
"""What the sanitizer finds; in cuBLAS's kernels (nvjet) racecheck does not know what orders their accesses."""
PLACE = re.compile(r"^=+\s+at (.*)", re.M)


class Entry(NamedTuple):
    """A line of the report."""

    stage: str
    name: str
    status: str  # ok, wrong, failed or cut
    text: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.stage:<10}{self.seconds:6.1f} s  {self.name}: {self.text}"


class Options(NamedTuple):
    """What all workers are called with."""

    folder: Path  # of the CSVs
    logs: Path
    command: str
    pack: Path | None  # with the stand-in's libraries, for a rehearsal
    rehearse: bool
    details: bool


def find_sanitizer() -> str | None:
    places = ("compute-sanitizer", f"{os.environ.get('CUDA_HOME')}/bin/compute-sanitizer",
              "/usr/local/cuda/bin/compute-sanitizer")  # fmt: skip
    return next(filter(None, map(shutil.which, places)), None)


class Worker:
    """A process with its jobs. What it says goes to a queue; at its end, None."""

    def __init__(self, stage: Stage, names: Sequence[str], options: Options, answers: queue.Queue) -> None:
        self.names, self.current, self.since = list(names), None, time.monotonic()
        self.spoken, self.hung, self.result = False, False, None
        self.log = options.logs / f"{stage.name} {re.sub('[^-.=+_a-z0-9]+', '_', names[0], flags=re.I)}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        named = next((tool for tool in TOOLS if names[0].startswith(tool)), stage.under)
        self.tool = "" if options.rehearse else named
        command = [sys.executable, "-m", "perf.gpu.worker", *names, "--folder", str(options.folder), "--command",
                   options.command, "--seconds", str(0.8 * stage.each)]  # fmt: skip
        command += ["--rehearse"] if options.rehearse else []
        command += ["--pack", str(options.pack)] if options.rehearse and options.pack else []
        command += ["--details"] if options.details else []
        environment = os.environ | {"RNNKERN_CUDA_FLAGS": stage.flags, "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}  # fmt: skip
        if stage.at_once > 1:
            environment["OMP_NUM_THREADS"] = str(max((os.cpu_count() or 1) // stage.at_once, 1))
        if self.tool:
            command = [find_sanitizer(), "--tool", self.tool, *command]
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # each tensor has bounds that are checked
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self.listen, args=(answers,), daemon=True).start()

    def listen(self, answers: queue.Queue) -> None:
        with self.process.stdout as said, self.log.open("ab") as log:
            for line in said:
                try:
                    answers.put((self, json.loads(line)))
                except ValueError:  # a line of the sanitizer
                    log.write(line)
        answers.put((self, None))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process may hang in the driver
            self.process.wait(5)

    def said(self) -> str:
        return self.log.read_bytes()[-LOG_BYTES:].decode(errors="replace")


def reason(text: str, log: str) -> str:
    """What a failure means, in a few words."""
    for pattern, words in SIGNS:
        if found := re.search(pattern, f"{text}\n{log}"):
            return words.format(*found.groups())
    return text.partition("\n")[0].replace(f"{ROOT}/", "")[:300]


def death(worker: Worker, each: float) -> str:
    """Why a process ended before its job did."""
    code = worker.process.poll()
    if worker.hung:
        return reason(f"hangs: killed after {each:g} s", worker.said())
    last = worker.said().strip().rpartition("\n")[2]
    ended = f"killed by signal {-code}" if code and code < 0 else f"ended with {code}"
    return reason(f"its process {ended}: {last}", worker.said())


def sanitized(worker: Worker, status: str, text: str) -> tuple[str, str]:
    """The verdict of a run under a tool of the sanitizer."""
    log = worker.said()
    if found := FOUND.search(log):
        at = PLACE.search(log, found.end())
        return "wrong", f"{found[0].strip('= ')}{f' at {at[1]}' if at else ''}"
    if count := re.search(r"ERROR SUMMARY: (\d+) error", log):
        return (status, f"no errors; {text}") if count[1] == "0" else ("wrong", f"{count[1]} errors; {text}")
    if "RACECHECK SUMMARY" in log:
        return status, f"no races; {text}"
    return status, text


def run(stage: Stage, names: Sequence[str], begun: float, options: Options) -> Iterator[Entry]:
    """Runs the jobs of a stage and yields an entry for each, as soon as there is one. ``begun`` is the time of
    ``time.monotonic`` at which the call began."""
    if not options.rehearse and (stage.under or names[0].startswith(TOOLS)) and not find_sanitizer():
        yield from (Entry(stage.name, name, "cut", "compute-sanitizer is absent", 0.0) for name in names)
        return
    waiting = [list(names[k : k + stage.together]) for k in range(0, len(names), stage.together)]
    running: list[Worker] = []
    answers: queue.Queue = queue.Queue()

    def entry(worker: Worker, name: str, status: str, text: str, seconds: float | None = None) -> Entry:
        if worker.tool:
            status, text = sanitized(worker, status, text)
        took = time.monotonic() - worker.since if seconds is None else seconds
        return Entry(stage.name, name, status, text, round(took, 1))

    try:
        while (waiting or running) and time.monotonic() - begun < stage.until:
            while waiting and len(running) < stage.at_once:
                running.append(Worker(stage, waiting.pop(0), options, answers))
            for worker in running:
                if not worker.hung and time.monotonic() - worker.since > stage.each:
                    worker.hung = True
                    worker.kill()
            with contextlib.suppress(queue.Empty):
                worker, answer = answers.get(timeout=POLL)
                if answer is None:  # the process has ended
                    running.remove(worker)
                    worker.kill()
                    if worker.result:
                        yield entry(worker, **worker.result)
                    if worker.current or (worker.names and not worker.spoken):
                        name = worker.current or worker.names[0]
                        worker.names.remove(name)
                        yield entry(worker, name, "failed", death(worker, stage.each))
                    if worker.names:
                        waiting.insert(0, worker.names)
                elif "status" not in answer:
                    worker.current, worker.since = answer["name"], time.monotonic()
                else:
                    worker.current, worker.spoken = None, True
                    worker.names.remove(answer["name"])
                    if answer["status"] == "failed":
                        answer["text"] = reason(answer["text"], worker.said())
                    if worker.tool:
                        worker.result = answer  # the tool reports at the end
                    else:
                        yield entry(worker, **answer)
    finally:
        for worker in running:
            worker.kill()
    for name in itertools.chain(*(worker.names for worker in running), *waiting):
        yield Entry(stage.name, name, "cut", "no time was left", 0.0)
