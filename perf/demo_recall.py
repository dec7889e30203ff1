"""Second part of the demo: RelRNN and an LSTM learn to copy symbols over few steps and are tested over more steps. Also
measures the memory that layers keep for the backward pass."""

from collections.abc import Sequence

import torch

from perf import memory, transfer
from perf.demo_digits import percent
from perf.progress import Progress
from perf.recall import RECALL
from perf.record import Row, significant
from perf.transfer import SMALL, Scale, Trained

CPU = torch.device("cpu")
TASK = "copy"
UPDATES = 2500
LENGTHS = (10, 100, 300, 1000)
MODELS = {"rnnkern.RelRNN": Trained(5e-3), "rnnkern.LSTM": Trained(1e-2)}
SCALE = Scale(SMALL._replace(length=LENGTHS[0]), 3, LENGTHS, MODELS, 0.99, 50)
MEMORY_LENGTHS = (100, 200, 400)
LAYERS = (("LSTM", "fused"), ("RelRNN", "fused"), ("RelRNN", "loop"), ("MemRNN", "fused"))


def run(updates: int) -> list[Row]:
    """Trains for at most ``updates`` updates; returns the rows of training and tests."""
    settings = SCALE.settings._asdict() | {"trained_length": SCALE.settings.length, "copied": SCALE.copied}
    facts = settings | {"task": TASK, "enough": SCALE.enough}
    found = transfer.learn(TASK, SCALE, list(SCALE.models), [0], transfer.Limits(updates), LENGTHS, CPU)
    return [facts | row for rows in found for row in rows]


def memories() -> list[Row]:
    subjects = [subject for subject in memory.SUBJECTS if (subject.name, subject.form) in LAYERS]
    with Progress("memory kept for the backward"):
        return list(memory.lines(subjects, 128, 2, MEMORY_LENGTHS, CPU, 5.0, 1e9))


# ---- what is printed


def tests(curves: Sequence[Row], model: str) -> dict[int, float]:
    """The accuracy by the length of the sequences."""
    return {row["length"]: row["measured"] for row in curves if (row["model"], row["phase"]) == (model, "test")}


def name(model: str) -> str:
    return model.partition(".")[2]


def table(curves: Sequence[Row]) -> list[Row]:
    lines = []
    for model in dict.fromkeys(row["model"] for row in curves):
        last = [row for row in curves if (row["model"], row["phase"]) == (model, "training")][-1]
        line = {"layer": name(model), "updates": last["update"], "ms per update": last["update_ms"]}
        lines.append(line | {f"right at T = {T}, %": percent(x) for T, x in tests(curves, model).items()})
    return lines


def memory_table(memories: Sequence[Row]) -> list[Row]:
    longest = MEMORY_LENGTHS[-1]
    return [
        {
            "layer": row["layer"],
            "run by": "rnnkern" if row["form"] == "fused" else "Python loop",
            f"kept at T = {longest}, MB": significant(row["saved_bytes"] / 1e6),
            "forward and backward, ms": significant(1e3 * row["seconds"]),
        }
        for row in memories
        if row["T"] == longest
    ]


def summary(curves: Sequence[Row], memories: Sequence[Row]) -> list[str]:
    """The summary in words."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in curves):
        found = tests(curves, model)
        short, long = min(found), max(found)
        lines.append(
            f"{name(model)}, trained with {short} blank steps, recalls {percent(found[short])} % of the symbols after "
            f"{short} steps and {percent(found[long])} % after {long}; a guess is right in "
            f"{percent(1 / RECALL[TASK].symbols)} %."
        )
    kept = {(row["layer"], row["form"]): row["saved_bytes"] for row in memories if row["T"] == MEMORY_LENGTHS[-1]}
    if {("RelRNN", "loop"), ("RelRNN", "fused")} <= kept.keys():  # a busy machine leaves out long loops
        times = kept["RelRNN", "loop"] / kept["RelRNN", "fused"]
        lines.append(
            f"For the backward pass, a Python loop of RelRNN keeps {times:.1f} times the memory that rnnkern keeps."
        )
    return lines
