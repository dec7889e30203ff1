"""medaka corrects genomes from the counts of bases that reads have at each position; its weights are in its wheel."""

import functools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import medaka
import torch
from medaka.models import open_model
from torch import Tensor

import rnnkern
from perf.programs.measure import Case, Clock

WEIGHTS = "r1041_e82_400bps_hac_v5.2.0_model_pt.tar.gz"
CHUNKS, LENGTH = 100, 10_000
"""Chunks of a batch and positions of a chunk, those of medaka's command line."""
DEPTH, ERRORS = 30, 0.05
"""Reads at a position, and the share of their bases that are wrong."""


def counts(chunks: int, length: int) -> Tensor:
    """Features of a random genome: the shares of A, C, G, T and deletions, on each strand."""
    torch.manual_seed(0)
    genome = torch.randint(4, (chunks, length, 1))
    wrong = torch.rand(chunks, length, DEPTH) < ERRORS
    reads = torch.where(wrong, torch.randint(5, wrong.shape), genome)
    strands = torch.nn.functional.one_hot(reads, 5).view(chunks, length, 2, DEPTH // 2, 5).sum(3)
    return strands.flatten(2).float() / DEPTH


def predict(way: str, clock: Clock, features: Tensor) -> Sequence[Tensor]:
    model = open_model(str(Path(medaka.__file__).parent / "data" / WEIGHTS)).load_model()
    if way == "rnnkern":
        rnnkern.replace(model)
    clock.watch(model.gru, "forward")
    return [clock.run(lambda: model.predict_on_batch(SimpleNamespace(counts_matrix=features)))]


def cases(tiny: bool = False) -> list[Case]:
    shapes = [(2, 50)] if tiny else [(1, LENGTH), (CHUNKS, LENGTH)]
    return [
        Case("medaka", f"{chunks} x {length:,} positions",
             {way: functools.partial(predict, way, features=counts(chunks, length))
              for way in ("as published", "rnnkern")},
             1, "batch", tolerance=1e-4)
        for chunks, length in shapes
    ]  # fmt: skip
