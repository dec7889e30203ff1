"""Draws the pictures of the theory of gates, of Lyapunov spectra and of non-normal weights: four minutes on two cores.
Each number in perf/results/<device>/dynamics.csv stands beside the interval in which theory, or an earlier computation,
says it is; the command fails if one is outside."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from perf import record
from perf.dynamics import gradients, lyapunov, nonnormal, phases, rows, spectra, training
from perf.dynamics.rows import Rows
from perf.progress import Progress

PICTURES = {
    "gates-spectra": spectra.gru_spectra,
    "gates-radius": spectra.radius,
    "gates-phases": phases.phases,
    "gates-lstm": spectra.lstm_spectra,
    "gates-training": training.slow_and_trained,
    "lyapunov": lyapunov.lyapunov,
    "nonnormal": nonnormal.nonnormality,
    "nonnormal-gradients": gradients.gradients,
}
"""Functions by the file names of their pictures."""
PARTS = {"gates-spectra": 8, "gates-radius": 12, "gates-phases": 4, "gates-lstm": 26, "gates-training": 15}
PARTS |= {"lyapunov": 3, "nonnormal": 4, "nonnormal-gradients": 3}
"""How often each of them calls ``advance``."""


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.dynamics", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the pictures, such as docs/images")
    parser.add_argument("--quick", action="store_true", help="small versions; their numbers are not kept")
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=list(PICTURES), metavar="PICTURE",
                        help=f"of {', '.join(PICTURES)}")  # fmt: skip
    parser.add_argument("--train", action="store_true", help=f"first run the 60 trainings of {training.NAME}")
    parser.add_argument("--data", type=Path, metavar="FOLDER",
                        help="with --train: MNIST, the four IDX files, plain or .gz, in place of digits")  # fmt: skip
    chosen = parser.parse_args(argv)
    if chosen.data is not None and not chosen.train:
        parser.error("--data needs --train")
    device = torch.device("cpu")
    results = record.folder(device)
    facts = record.facts(device, shlex.join(["python", "-m", "perf.dynamics", *argv]))
    if chosen.train:
        training.sweep(chosen.data, facts, lambda found: record.append(results / training.NAME, found))
    found = []
    with Progress("", sum(PARTS[name] for name in chosen.only), "part") as progress:
        for name in chosen.only:
            progress.what = name
            found.append(Rows(name))
            PICTURES[name](chosen.folder, chosen.quick, found[-1], progress.advance)
    found = [row for picture in found for row in picture]
    if not chosen.quick:
        record.append(results / rows.NAME, [facts | row for row in found])
    wrong = rows.outside(found)
    print(f"{len(found)} numbers, {len(wrong)} of them outside of their interval", *wrong, sep="\n")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
