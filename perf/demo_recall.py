"""The demo's second part: RelRNN and an LSTM learn denoise at T = 20 and are tested on longer sequences; beside it what
layers keep for the backward."""

from pathlib import Path

import torch

from perf import memory, record, transfer, transfer_picture
from perf.record import Row

MODELS = ("rnnkern.RelRNN", "rnnkern.LSTM")
LENGTHS = (20, 100, 300, 1000)
MEMORY_LENGTHS = (100, 200, 400)
LAYERS = (("LSTM", "fused"), ("RelRNN", "fused"), ("RelRNN", "loop"), ("MemRNN", "fused"))
PICTURE = record.ROOT / "docs" / "images" / "demo-recall.png"


def run(updates: int, facts: Row, picture: Path = PICTURE) -> None:
    """Trains, tests, measures, draws and prints."""
    device = torch.device("cpu")
    scale = transfer.SCALES["denoise", "small"]
    settings = scale.settings._asdict() | {"trained_length": scale.settings.length, "copied": scale.copied}
    facts = facts | settings | {"task": "denoise", "enough": scale.enough}
    rows = []
    for found in transfer.learn("denoise", scale, MODELS, [0], updates, LENGTHS, device):
        rows += [facts | row for row in found]
    subjects = [subject for subject in memory.SUBJECTS if (subject.name, subject.form) in LAYERS]
    memories = list(memory.lines(subjects, 128, 2, MEMORY_LENGTHS, device, 5.0, 1e9))
    transfer_picture.draw(picture, rows, memories)
    print(record.table(transfer.ends(rows)))
    print(record.table(memory.fits(memories)))
