"""Draws the pictures of the theory of gates, of Lyapunov spectra and of non-normal weights."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from perf import record
from perf.dynamics import training


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.dynamics", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the pictures, such as docs/images")
    parser.add_argument("--train", action="store_true", help=f"run the trainings of {training.NAME} first")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="train on MNIST, the four IDX files, plain or .gz")
    chosen = parser.parse_args(argv)
    device = torch.device("cpu")
    facts = record.facts(device, shlex.join(["python", "-m", "perf.dynamics", *argv]))
    if chosen.train:
        training.sweep(chosen.data, facts, lambda rows: record.append(record.folder(device) / training.NAME, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
