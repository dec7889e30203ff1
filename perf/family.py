"""What every family's benchmark is asked."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from perf import record
from perf.harness import Effort

LOOK = Effort(0.1, 3, 5, 1e-4)
WIDE = ("float32", "float64")
"""Of families that compute 16 bits in float32."""
SPEED = "speed"
"""The CSV of all that the harness measures on a CPU: every family's rows have the same columns."""


class Setup(NamedTuple):
    """Where a family's cases are measured, what for, and for how long."""

    path: Path | None
    device: torch.device
    command: str
    effort: Effort


def arguments(
    description: str, dtypes: Sequence[str] = (*WIDE, "bfloat16"), devices: bool = False
) -> argparse.ArgumentParser:
    """Those that every family's benchmark takes; ``devices``: whether it runs on a GPU too."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and rnnkern")
    parser.add_argument("--dtype", default="float32", choices=dtypes)
    parser.add_argument(
        "--seconds", type=float, default=Effort().seconds, help="per case and direction, after which it gives up"
    )
    parser.add_argument("--quick", action="store_true", help="a look: tiny shapes, few rounds, nothing is kept")
    if devices:
        parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    record.add_output_arguments(parser)
    return parser


def begin(
    parser: argparse.ArgumentParser, argv: Sequence[str], family: str, quick: Effort = LOOK, name: str = SPEED
) -> tuple[argparse.Namespace, Setup]:
    """Reads the arguments of ``perf.<family>`` and sets the threads.

    Args:
        quick: the effort of a look.
        name: of the CSV, that of a family with columns of its own.
    """
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    device = torch.device(getattr(chosen, "device", "cpu"))
    path = None if chosen.quick else record.output(chosen, device).rows / f"{name}.csv"
    command = shlex.join(["python", "-m", f"perf.{family}", *argv])
    return chosen, Setup(path, device, command, quick if chosen.quick else Effort(chosen.seconds))
