"""Command-line arguments that the benchmarks of all operator families share."""

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
"""Dtypes of families that compute 16-bit dtypes in float32."""
SPEED = "speed"
"""Name of the CSV with all CPU measurements of the harness; the rows of all families have the same columns."""


class Setup(NamedTuple):
    """Where the cases of a family are measured, by which command, and for how long."""

    path: Path | None
    device: torch.device
    command: str
    effort: Effort


def arguments(
    description: str, dtypes: Sequence[str] = (*WIDE, "bfloat16"), devices: bool = False
) -> argparse.ArgumentParser:
    """A parser with the common arguments; ``devices`` adds the choice of a device."""
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


def add_shapes(parser: argparse.ArgumentParser, metavar: str, usual: str) -> None:
    """Adds ``--shapes``: sizes separated by x, as many as ``metavar`` names.

    Args:
        usual: the number of shapes without the argument, in words.
    """

    def shape(text: str) -> tuple[int, ...]:
        sizes = tuple(map(int, text.split("x")))
        if len(sizes) != len(metavar.split("x")):
            raise ValueError(text)
        return sizes

    parser.add_argument("--shapes", nargs="+", type=shape, metavar=metavar, help=f"instead of the usual {usual}")


def begin(
    parser: argparse.ArgumentParser, argv: Sequence[str], family: str, quick: Effort = LOOK, name: str = SPEED
) -> tuple[argparse.Namespace, Setup]:
    """Parses the arguments of ``perf.<family>`` and sets the number of threads.

    Args:
        quick: the effort with ``--quick``.
        name: name of the CSV, if the family has columns of its own.
    """
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    device = torch.device(getattr(chosen, "device", "cpu"))
    path = None if chosen.quick else record.output(chosen, device).rows / f"{name}.csv"
    command = shlex.join(["python", "-m", f"perf.{family}", *argv])
    return chosen, Setup(path, device, command, quick if chosen.quick else Effort(chosen.seconds))
