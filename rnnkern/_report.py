"""What the commands that measure share: layers by name, the facts that a figure depends on, CSV files and tables."""

import argparse
import csv
import importlib
import math
import platform
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

CPUINFO = Path("/proc/cpuinfo")
Row = dict[str, Any]


def layer(name: str) -> type[Module]:
    """The class of a layer: a name of ``rnnkern.nn``, or an import path such as ``torch.nn.LSTM``.

    Raises:
        argparse.ArgumentTypeError: there is no such class.
    """
    path, _, attribute = name.rpartition(".")
    path = path or "rnnkern.nn"
    try:
        found = getattr(importlib.import_module(path), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"no layer {name!r}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Module)):
        raise argparse.ArgumentTypeError(f"{name!r} must be a torch.nn.Module, got {found!r}")
    return found


def name_of(kind: type[Module]) -> str:
    """A short name of a layer's class: ``rnnkern.nn.LSTM`` for one of rnnkern or torch, otherwise the whole path."""
    package = re.match(r"(rnnkern|torch)\.nn\.", f"{kind.__module__}.")
    return f"{package[0] if package else f'{kind.__module__}.'}{kind.__qualname__}"


def facts(device: torch.device) -> Row:
    """What the figures of a row depend on."""
    return {
        "date": now(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def device_name(device: torch.device) -> str:
    """Name of a device. For a CPU it contains family and model if a hypervisor reveals only the vendor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    said = CPUINFO.read_text() if CPUINFO.exists() else ""
    told = dict(re.findall(r"^(model name|cpu family|model)\s*: (.+)$", said, re.MULTILINE))
    name = told.get("model name", "").strip() or platform.processor() or platform.machine()
    hidden = "model" in told and not re.search(r"\d", name)
    return f"{name} family {told['cpu family']} model {told['model']}" if hidden else name


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
