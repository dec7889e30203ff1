"""Trains recurrent layers on a recall task until they solve it, then tests them on longer sequences.

Training ends at a given accuracy or after a maximum number of updates or minutes; with the same seed all layers see the
same batches. With ``--checkpoints`` a training that was cut off is continued by the same command. Rows are appended to
CSVs: one row per evaluation during training, and one row per length in the test. The picture shows both.
"""

import argparse
import functools
import itertools
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from perf import record, transfer_picture
from perf.models import MODELS, size
from perf.progress import Progress
from perf.recall import RECALL
from perf.record import Row, significant
from perf.tasks import Own, Settings
from perf.train import Training, mean_score


class Trained(NamedTuple):
    """Optimizer and learning rate of a layer."""

    rate: float
    optimiser: str = "Adam"


class Scale(NamedTuple):
    settings: Settings  # without optimizer and rate, which each layer has in ``models``
    copied: int  # K
    lengths: tuple[int, ...]  # T in the tests
    models: Mapping[str, Trained]
    enough: float  # accuracy at which training ends
    every: int  # updates between measurements


SMALL = Settings(20, 32, 64, "", 0.0, 1.0, 4000, 200)
FULL = Settings(100, 10, 128, "", 0.0, 1.0, 20_000, 200)
SMALL_MODELS = {
    "rnnkern.RelRNN": Trained(3e-3),
    "rnnkern.RelRNN-sum": Trained(3e-3),
    "rnnkern.RelRNN-random": Trained(3e-3),
    "rnnkern.MemRNN": Trained(3e-3),
    "rnnkern.RelLSTM": Trained(1e-2),
    "rnnkern.SABLSTM": Trained(3e-3),
    "rnnkern.LSTM": Trained(1e-2),
    "rnnkern.ExpRNN": Trained(3e-3),
}
OTHERS = {
    "rnnkern.RelLSTM": Trained(2e-4),
    "rnnkern.MemRNN": Trained(2e-4),
    "rnnkern.SABLSTM": Trained(2e-4),
    "rnnkern.LSTM": Trained(2e-4),
    "rnnkern.OrthogonalInitRNN": Trained(2e-4, "RMSprop"),
    "rnnkern.ExpRNN": Trained(2e-4, "RMSprop"),
}
SCALES = {
    ("copy", "small"): Scale(SMALL, 5, (20, 50, 100, 200, 500, 1000), SMALL_MODELS, 0.99, 50),
    ("denoise", "small"): Scale(SMALL, 5, (20, 50, 100, 200, 500, 1000), SMALL_MODELS, 0.99, 50),
    ("copy", "full"): Scale(
        FULL, 10, (100, 200, 400, 2000, 5000),
        {"rnnkern.RelRNN": Trained(2e-4)} | OTHERS | {"rnnkern.LSTM-h-detach": Trained(2e-4)}, 0.999, 200,
    ),
    ("denoise", "full"): Scale(
        FULL, 10, (100, 300, 500, 1000, 2000),
        {"rnnkern.RelRNN-modrelu": Trained(2e-4, "RMSprop")} | OTHERS | {"rnnkern.GORU": Trained(1e-3, "RMSprop")},
        0.999, 200,
    ),
}  # fmt: skip
"""Settings by task and scale; the full scale is that of the thesis."""


class Limits(NamedTuple):
    """When a training ends, unless it reaches the accuracy of its scale before."""

    updates: int
    minutes: float = math.inf


def trained(
    training: Training, scale: Scale, limits: Limits, checkpoint: Path | None, told: Callable[[str], None]
) -> list[Row]:
    """Runs the training, from its checkpoint if there is one, and returns a row per measurement."""
    rows, spent = resumed(training, checkpoint)
    begun, words, started = len(training.losses), "", time.monotonic() - spent
    while not rows or rows[-1]["measured"] < scale.enough:
        if len(training.losses) >= limits.updates or time.monotonic() - started >= 60 * limits.minutes:
            break
        training.update()
        told(words)
        update = len(training.losses)
        if update % scale.every == 0 or update == limits.updates:
            measured = training.measure()
            words = f"accuracy {measured:.3g}"
            rows.append({
                "update": update,
                "length": training.settings.length,
                "train_loss": significant(statistics.fmean(training.losses[begun:])),
                "measured": significant(measured),
                "update_ms": significant(1e3 * statistics.median(training.seconds[begun:])),
            })  # fmt: skip
            begun = update
            save(training, checkpoint, rows, time.monotonic() - started)
    return rows


def save(training: Training, checkpoint: Path | None, rows: Sequence[Row], spent: float) -> None:
    if checkpoint is None:
        return
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    new = checkpoint.with_suffix(".new")
    torch.save(
        {
            "network": training.network.state_dict(),
            "optimiser": training.optimiser.state_dict(),
            "generator": training.generator.get_state(),
            "losses": training.losses,
            "seconds": training.seconds,
            "rows": list(rows),
            "spent": spent,
        },
        new,
    )
    new.replace(checkpoint)


def resumed(training: Training, checkpoint: Path | None) -> tuple[list[Row], float]:
    """Loads the checkpoint into the training; returns its rows and the seconds that it took."""
    if checkpoint is None or not checkpoint.exists():
        return [], 0.0
    found = torch.load(checkpoint, weights_only=True)
    training.network.load_state_dict(found["network"])
    training.optimiser.load_state_dict(found["optimiser"])
    training.generator.set_state(found["generator"])
    training.losses, training.seconds = found["losses"], found["seconds"]
    return found["rows"], found["spent"]


@torch.no_grad()
def tested(training: Training, task: str, scale: Scale, lengths: Sequence[int], told: Callable) -> Iterator[Row]:
    """Yields a row for each length."""
    training.network.eval()
    for length in lengths:
        told(f"testing at T = {length}")
        long = RECALL[task].task(length, scale.copied, 1, training.settings.held_out)
        measured = mean_score(training.network, long.held_out(), long.score, training.device)
        yield {"update": len(training.losses), "length": length, "train_loss": "", "measured": significant(measured),
               "update_ms": ""}  # fmt: skip


def learn(
    task: str, scale: Scale, models: Sequence[str], seeds: Sequence[int], limits: Limits, lengths: Sequence[int],
    device: torch.device, kept: Path | None = None, checkpoints: Path | None = None,
) -> Iterator[list[Row]]:  # fmt: skip
    """Yields the rows of each training and its tests at their end."""
    ready = RECALL[task].task(scale.settings.length, scale.copied, scale.settings.batch, scale.settings.held_out)
    with Progress("", len(models) * len(seeds) * limits.updates, "update") as progress:
        for seed, model in itertools.product(seeds, models):
            how = scale.models[model]
            settings = scale.settings._replace(optimiser=how.optimiser, rate=how.rate)

            def told(words: str, at: str = f"{model}, seed {seed}", step: int = 1) -> None:
                progress.what = f"{at} {words}"
                progress.advance(step)

            training = Training(ready, model, seed, settings, device, Own(how.rate))
            facts = {"model": model, "parameters": size(training.network), "seed": seed}
            facts |= {"optimiser": how.optimiser, "rate": how.rate}
            checkpoint = checkpoints and checkpoints / f"{task}-{model}-{seed}.pt"
            curve = [{"phase": "training"} | row for row in trained(training, scale, limits, checkpoint, told)]
            telling = functools.partial(told, step=0)
            test = [{"phase": "test"} | row for row in tested(training, task, scale, lengths, telling)]
            told("", step=limits.updates - len(training.losses))
            yield [facts | row for row in curve + test]
            if kept is not None:
                kept.mkdir(parents=True, exist_ok=True)
                torch.save(training.network.state_dict(), kept / f"{task}-{model}-{seed}.pt")


def ends(rows: Sequence[Row]) -> list[Row]:
    """A row per model: the number of seeds that solved the task, their last updates, and the accuracy of each seed at
    each length."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        tests = [row for row in own if row["phase"] == "test"]
        last = list({row["seed"]: row for row in own if row["phase"] == "training"}.values())
        line = {
            "model": model,
            "optimizer": f"{own[0]['optimiser']} {own[0]['rate']}",
            "seeds": len(last),
            "learned": sum(float(row["measured"]) >= float(row["enough"]) for row in last),
            "updates": " ".join(str(row["update"]) for row in last),
        }
        for length in sorted({int(row["length"]) for row in tests}):
            found = [float(row["measured"]) for row in tests if int(row["length"]) == length]
            line[f"T = {length}"] = " ".join(f"{x:.2f}" for x in found)
        lines.append(line)
    return lines


# ---- the command


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.transfer", description=__doc__)
    parser.add_argument("--task", required=True, choices=RECALL)
    parser.add_argument("--scale", default="small", choices=("small", "full"),
                        help="small: minutes on two cores; full: the thesis' settings, for a GPU")  # fmt: skip
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="MODEL", help="all of the scale's if not given")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED", help="0 1 2 if not given")
    parser.add_argument("--updates", type=int, help="most updates of a training")
    parser.add_argument("--minutes", type=float, default=math.inf, help="most minutes of a training")
    parser.add_argument("--lengths", nargs="+", type=int, metavar="T", help="of the tests")
    parser.add_argument("--trained-length", type=int, metavar="T", help="of the sequences in training")
    sizes = "of buffer and relevant set of RelRNN and RelLSTM; 10 10 if not given"
    parser.add_argument("--sizes", nargs=2, type=int, metavar=("NU", "RHO"), help=sizes)
    parser.add_argument("--rate", type=float, help="learning rate of all layers, in place of those of the scale")
    parser.add_argument("--device", type=torch.device, default="cpu", help="cpu if not given")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and rnnkern; 2 if not given")
    record.add_output_arguments(parser)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of what each training has learnt, a state_dict")
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="of trainings that can be continued")
    return parser


def main(argv: Sequence[str]) -> None:
    parser = arguments()
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    scale = SCALES[chosen.task, chosen.scale]
    models = chosen.models or list(scale.models)
    if unknown := [model for model in models if model not in scale.models]:
        parser.error(
            f"--models: {chosen.task} at the scale {chosen.scale} has {', '.join(scale.models)}, not {unknown}"
        )
    scale, models = as_asked(scale, models, chosen)
    limits = Limits(chosen.updates or scale.settings.updates, chosen.minutes)
    lengths = chosen.lengths or scale.lengths
    facts = record.facts(chosen.device, shlex.join(["python", "-m", "perf.transfer", *argv]))
    settings = scale.settings._asdict()
    facts |= {"task": chosen.task, "scale": chosen.scale, "trained_length": settings["length"], "copied": scale.copied}
    facts |= {name: settings[name] for name in ("batch", "hidden", "clip", "held_out")} | {"enough": scale.enough}
    out = record.output(chosen, chosen.device)
    path = out.rows / f"transfer-{chosen.task}.csv"
    folders = chosen.keep, chosen.checkpoints
    for rows in learn(chosen.task, scale, models, chosen.seeds, limits, lengths, chosen.device, *folders):
        record.append(path, [facts | row for row in rows])
    rows = newest(record.read(path), chosen.task, chosen.scale)
    transfer_picture.draw(out.pictures / f"transfer-{chosen.task}-{chosen.scale}.png", rows)
    for line in ends(rows):
        print("  ".join(f"{name}: {x}" for name, x in line.items()))


def as_asked(scale: Scale, models: Sequence[str], chosen: argparse.Namespace) -> tuple[Scale, list[str]]:
    """The scale and the models with the trained length, the rate and the sizes of the command line. Models with other
    sizes have them in their name."""
    if chosen.trained_length is not None:
        scale = scale._replace(settings=scale.settings._replace(length=chosen.trained_length))
    named = {}
    for model in models:
        name, how = model, scale.models[model]
        if chosen.sizes and model.startswith(("rnnkern.RelRNN", "rnnkern.RelLSTM")):
            nu, rho = chosen.sizes
            name = f"{model}-{nu}-{rho}"
            MODELS[name] = functools.partial(MODELS[model], buffer_size=nu, relevant_size=rho)
        named[name] = how if chosen.rate is None else how._replace(rate=chosen.rate)
    return scale._replace(models=named), list(named)


def newest(rows: Sequence[Row], task: str, scale: str) -> list[Row]:
    """The newest training of each model and seed."""
    rows = [row for row in rows if (row["task"], row["scale"]) == (task, scale)]
    dates = {(row["model"], row["seed"]): row["date"] for row in rows}
    order = list(dict.fromkeys(row["model"] for row in rows))
    rows = [row for row in rows if row["date"] == dates[row["model"], row["seed"]]]
    return sorted(rows, key=lambda row: (order.index(row["model"]), int(row["seed"])))


if __name__ == "__main__":
    main(sys.argv[1:])
