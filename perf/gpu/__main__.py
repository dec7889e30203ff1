"""Proves and measures the kernels on a machine with a GPU, in two calls of a few minutes: ``make gpu``.

Every line goes to report.txt in the folder of the results as soon as it is known. CSVs go to perf/results/<device>, and
everything together to an archive, which is written after each stage.
"""

import argparse
import json
import math
import os
import shutil
import signal
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from perf.gpu import pack, runner
from perf.gpu.plan import AGAIN, CALL_SECONDS, STAGES, Stage
from perf.gpu.runner import ROOT, Entry, Options

OUT = ROOT / "build" / "gpu"
LINES = 60
"""Length of the report that is printed at the end."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m perf.gpu", description=__doc__)
    parser.add_argument(
        "--again", type=Path, metavar="REPORT", help="the second call, with the first one's report.json"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder of report and archive; default: build/gpu")
    parser.add_argument("--rehearse", action="store_true", help="starts kernels on a stand-in for the driver; no GPU")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="these alone")
    return parser.parse_args(argv)


def todo(chosen: argparse.Namespace) -> list[tuple[Stage, list[str]]]:
    """The jobs of a call, by stage."""
    from perf.gpu import jobs

    if chosen.again is None:
        return [(STAGES[name], [job for job, _ in jobs.STAGES[name]()]) for name in chosen.stages]
    before = [Entry(**entry) for entry in json.loads(chosen.again.read_text())["entries"]]
    of = {name: [e.name for e in before if again(e) == name] for name in AGAIN}
    return [(stage, of[name]) for name, stage in AGAIN.items() if of[name]]


def again(entry: Entry) -> str:
    """The stage of the second call that does a job once more; empty if none."""
    if entry.status == "ok":
        return ""
    if entry.status == "cut" or (entry.status, entry.stage) == ("wrong", "speed"):  # is timed with nothing beside it
        return entry.stage
    if entry.name == "primitives":  # traps on purpose
        return "first"
    return {"failed": "faults", "wrong": "wrong"}[entry.status]


def summary(entries: Sequence[Entry], took: dict[str, float], stages: dict[str, Stage], tables: str) -> str:
    """The report in ``LINES`` lines: what is not as it should be, then the speed, as far as there is room."""
    lines = []
    for name, seconds in took.items():
        mine = [entry for entry in entries if entry.stage == name]
        counts = {status: sum(e.status == status for e in mine) for status in ("ok", "wrong", "failed", "cut")}
        told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        lines.append(f"{name:<10}{seconds:6.1f} s, expected {stages[name].estimate:g}: {told}")
    bad = [str(entry)[:200] for entry in entries if entry.status in ("wrong", "failed")]
    speed = tables.splitlines()
    room = max(LINES - len(lines) - len(speed) - 2, 20)
    lines += bad[:room] + [f"... and {len(bad) - room} more in report.txt"] * (len(bad) > room)
    return "\n".join([*lines, *speed][:LINES])


def archive(out: Path, folder: Path, results: Path | None) -> None:
    """Writes one file with the report, the logs and the CSVs, whose paths in it are those in a checkout."""
    partial = out / ".results"
    with tarfile.open(partial, "w:gz") as tar:
        for path in (out / "report.txt", out / "report.json", folder / "logs"):
            if path.exists():
                tar.add(path, f"build/gpu/{path.name}")
        for path in sorted(results.glob("*.csv")) if results else ():
            tar.add(path, path.relative_to(ROOT))
    partial.replace(out / "results.tar.gz")


def main(argv: Sequence[str]) -> None:
    begun, chosen = time.monotonic(), parse(argv)
    chosen.out = chosen.out.resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the results so far are archived
    unpacked = pack.unpack()
    import torch

    from perf import record
    from perf.gpu import tables

    if not chosen.rehearse and not torch.cuda.is_available():
        sys.exit(f"make gpu needs a CUDA device: PyTorch {torch.__version__} sees none")
    pack.rename_kernels()
    folder = ROOT / "build" / "gpu" / "work"  # not in --out, which may be limited to a few files
    chosen.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    device = None if chosen.rehearse else torch.device("cuda", 0)
    results = record.folder(device) if device else None
    command = "make gpu" if chosen.again is None else "make gpu AGAIN=report.json"
    name = record.device_name(device) if device else "a stand-in for the driver"
    head = f"{name}, commit {record.commit()}, PyTorch {torch.__version__}; {unpacked}"
    since, jobs = record.now(), todo(chosen)
    entries, took, total = [], {}, CALL_SECONDS["first" if chosen.again is None else "again"]
    facts = record.facts(device or torch.device("cpu"), command)
    with (chosen.out / "report.txt").open("w", buffering=1) as report:

        def tell(words: object) -> None:
            line = f"{time.monotonic() - begun:6.1f} s  {words}"
            print(line, file=report)
            print(line[:300], flush=True)

        def save() -> None:
            text = {"head": head, "took": took, "entries": [entry._asdict() for entry in entries]}
            (chosen.out / "report.json").write_text(json.dumps(text, indent=1))
            archive(chosen.out, folder, results)

        tell(head)
        try:
            for stage, names in jobs:
                if chosen.rehearse:  # as long as it takes on this machine
                    at_once = min(stage.at_once, os.cpu_count() or 1)
                    together = -(-len(names) // at_once)
                    stage = stage._replace(until=math.inf, each=4 * stage.each, at_once=at_once, together=together)
                options = Options(
                    folder=results or folder,
                    logs=folder / "logs",
                    command=command,
                    pack=pack.PACK if pack.FACTS.exists() else None,
                    rehearse=chosen.rehearse,
                    details=stage.name == "wrong",
                )
                start = time.monotonic()
                for entry in runner.run(stage, names, begun, options):
                    entries.append(entry)
                    tell(entry)
                took[stage.name] = time.monotonic() - start
                if results and (mine := [entry for entry in entries if entry.stage == stage.name]):
                    rows = [facts | entry._asdict() | {"text": entry.text[:300]} for entry in mine]
                    record.append(results / "gpu-report.csv", rows)
                save()
        finally:
            save()
        speed = tables.text(results, since) if results else ""
        print(speed, file=report)
    shown = summary(entries, took, {stage.name: stage for stage, _ in jobs}, speed)
    print(f"\n{head}\n{shown}\n{time.monotonic() - begun:.0f} of {total} s; {chosen.out / 'results.tar.gz'}")
    sys.exit(any(entry.status in ("wrong", "failed") for entry in entries))


if __name__ == "__main__":
    main(sys.argv[1:])
