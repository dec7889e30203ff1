"""Storage of measurements: the facts that a figure depends on, CSV files to which rows are appended, and printed
tables."""

import argparse
import csv
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parents[1]
RESULTS, PICTURES = ROOT / "perf" / "results", ROOT / "docs" / "images"
"""Folders of published results and pictures."""
BUILT = ROOT / "build" / "perf"
"""Folder of unpublished results."""
CPUINFO = Path("/proc/cpuinfo")
OURS = "rnnkern"
"""Name of this package among the providers."""

Row = dict[str, Any]


def facts(device: torch.device, command: str) -> Row:
    """The first columns of every row. ``simd`` is empty without the compiled extension."""
    import rnnkern  # imported here: `make gpu` calls this module before the build

    return {
        "date": now(),
        "commit": commit(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rnnkern": rnnkern.__version__,
        "simd": rnnkern.build_info()["simd_level"] or "",
        "command": command,
    } | (accelerator() if device.type == "cuda" else {})


def accelerator() -> Row:
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    cudnn = torch.backends.cudnn.version()
    return {"cuda": torch.version.cuda, "cudnn": cudnn, "matmul_tf32": tf32[0], "cudnn_tf32": tf32[1]}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def commit() -> str:
    """The commit of the checkout, with ``-dirty`` appended if measured code differs from it; changed results and
    pictures do not count.

    In a copy without a .git folder, the environment variable ``RNNKERN_COMMIT`` gives the commit.
    """

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    revision = git("rev-parse", "--short", "HEAD") or os.environ.get("RNNKERN_COMMIT", "unknown")
    return revision + (
        "-dirty" if git("status", "--porcelain", "--", "csrc", "rnnkern", "perf/*.py", "setup.py") else ""
    )


def device_name(device: torch.device) -> str:
    """Name of a device. For a CPU it contains family and model if a hypervisor reveals only the vendor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    said = CPUINFO.read_text() if CPUINFO.exists() else ""
    told = dict(re.findall(r"^(model name|cpu family|model)\s*: (.+)$", said, re.MULTILINE))
    name = told.get("model name", "").strip() or platform.processor() or platform.machine()
    hidden = "model" in told and not re.search(r"\d", name)
    return f"{name} family {told['cpu family']} model {told['model']}" if hidden else name


def folder(device: torch.device, results: Path = RESULTS) -> Path:
    """Folder of a device's results, such as ``cpu-amd-epyc-2t`` or ``nvidia-h200``."""
    slug = re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")
    return results / (slug if device.type == "cuda" else f"cpu-{slug}-{torch.get_num_threads()}t")


class Output(NamedTuple):
    """The folders for the rows and the pictures of a run."""

    rows: Path
    pictures: Path


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``--out`` and ``--publish``, which :func:`output` reads."""
    options = parser.add_mutually_exclusive_group()
    options.add_argument("--out", type=Path, metavar="FOLDER", help="of rows and pictures, not build/perf/<device>")
    options.add_argument("--publish", action="store_true", help="rows go to perf/results/<device>, pictures to docs")


def output(chosen: argparse.Namespace, device: torch.device) -> Output:
    """The folders for the results. Only ``--publish`` changes files that git tracks."""
    if chosen.publish:
        return Output(folder(device), PICTURES)
    place = chosen.out or folder(device, BUILT)
    return Output(place, place)


def append(path: Path, rows: Sequence[Row]) -> None:
    """Appends rows to a CSV; creates it if it does not exist.

    Raises:
        ValueError: the columns differ from those in the file's header.
    """
    columns = list(rows[0])
    begun = path.exists()
    if begun:
        with path.open(newline="") as file:
            header = next(csv.reader(file), [])
        if header != columns:
            raise ValueError(f"{path.name}: the header must be {columns}, got {header}; move the file away")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if not begun:
            writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def significant(x: float) -> float:
    """Rounds to four digits, the highest accuracy of any measurement here."""
    return float(f"{x:.4g}")


def exponent(points: Iterable[tuple[Any, Any]]) -> float:
    """p of y ~ x^p, fitted to pairs (x, y) by least squares of the logarithms; pairs with y = 0 are ignored."""
    logarithms = [(math.log(float(x)), math.log(float(y))) for x, y in points if float(y) > 0]
    if len(logarithms) < 2:
        return math.nan
    x, y = torch.tensor(logarithms, dtype=torch.float64).unbind(-1)
    return (((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()).item()


def table(rows: Sequence[Row]) -> str:
    """A table with aligned columns; columns of numbers are right-aligned, even if some cells are empty."""
    columns = list(rows[0])
    cells = [[str(row[name]) for name in columns] for row in rows]
    numeric = [all(isinstance(row[name], (int, float)) or row[name] == "" for row in rows) for name in columns]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = []
    for line in (columns, *cells):
        padded = (f"{x:>{w}}" if right else f"{x:<{w}}" for x, w, right in zip(line, widths, numeric, strict=True))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
