"""Storage of measurements: the facts that a figure depends on, CSV files to which rows are appended, and printed
tables."""

import argparse
import csv
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import torch

import rnnkern
from rnnkern._report import Row, append, device_name, exponent, now, significant, table

__all__ = ["Row", "append", "device_name", "exponent", "now", "significant", "table"]

ROOT = Path(__file__).parents[1]
RESULTS, PICTURES = ROOT / "perf" / "results", ROOT / "docs" / "images"
"""Folders of published results and pictures."""
BUILT = ROOT / "build" / "perf"
"""Folder of unpublished results."""
OURS = "rnnkern"
"""Name of this package among the providers."""


def facts(device: torch.device, command: str) -> Row:
    """The first columns of every row. ``simd`` is empty without the compiled extension."""
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


def commit() -> str:
    """The commit of the checkout, with ``-dirty`` appended if measured code differs from it; changed results and
    pictures do not count.

    In a copy without a .git folder, the environment variable ``RNNKERN_COMMIT`` gives the commit.
    """

    def git(*arguments: str) -> str:
        try:
            return subprocess.check_output(["git", *arguments], cwd=ROOT, stderr=subprocess.DEVNULL, text=True).strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    revision = git("rev-parse", "--short", "HEAD") or os.environ.get("RNNKERN_COMMIT", "unknown")
    return revision + (
        "-dirty" if git("status", "--porcelain", "--", "csrc", "rnnkern", "perf/*.py", "setup.py") else ""
    )


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


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
