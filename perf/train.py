"""Trains recurrent layers on a task, each with several seeds, and records their learning curves.

The seed determines weights and batches: with the same seed all models see the same batches, and a layer of rnnkern
starts with the weights of its counterpart in torch.nn. Rows are appended to a CSV; the table and the picture show each
model's newest run on the same data.
"""

import argparse
import functools
import itertools
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

import rnnkern
from perf import record, train_picture
from perf.models import MODELS, Network, detached, size
from perf.progress import Progress
from perf.record import Row, significant
from perf.tasks import TASKS, Batch, Own, Settings, Task, by_accuracy

OPTIMISERS = {
    "Adam": torch.optim.Adam,
    "RMSprop": torch.optim.RMSprop,
    "RMSprop-0.9": functools.partial(torch.optim.RMSprop, alpha=0.9),
}
"""Optimizers by name. RMSprop uses PyTorch's default smoothing constant of 0.99."""
ROWS = 20
"""Number of rows per training, unless ``--every`` is given."""
QUICK, QUICK_LENGTH = {"batch": 4, "hidden": 8, "updates": 4, "held_out": 64}, 8


class Training:
    """State of the training of one model with one seed."""

    def __init__(
        self, task: Task, model: str, seed: int, settings: Settings, device: torch.device, own: Own | None = None
    ) -> None:
        torch.manual_seed(seed)
        own = own or Own(settings.rate)
        rnn = MODELS[model](task.inputs, settings.hidden, **{"init": own.init} if own.init else {})
        self.task, self.settings, self.device = task, settings, device
        self.network = Network(rnn, settings.hidden, task.outputs, task.each_step).to(device)
        groups = rnnkern.optim.param_groups(
            self.network, own.rate, own.orthogonal, triangular_weight_decay=own.triangular_weight_decay
        )
        unitary = [p for p in self.network.parameters() if p.is_complex()]  # unitary weights use CayleySGD
        for group in groups:
            group["params"] = [p for p in group["params"] if not p.is_complex()]
        self.optimiser, self.own = OPTIMISERS[settings.optimiser](groups), own
        own_rate = own.rate / 10 if own.orthogonal is None else own.orthogonal
        alpha = self.optimiser.defaults.get("alpha", 0.99)
        self.multiplicative = rnnkern.optim.CayleySGD(unitary, own_rate, alpha) if unitary else None
        self.generator = torch.Generator().manual_seed(seed)
        self.batches = task.training(self.generator)
        self.state = None
        self.losses: list[float] = []  # one per update
        self.seconds: list[float] = []  # one per update, without the time of drawing the batch

    def update(self) -> None:
        x, y, carried = next(self.batches).to(self.device)
        begun = time.perf_counter()
        answers, state = self.network(x, self.state if carried else None)
        loss = self.task.loss(answers, y)
        penalty = self.own.delta * rnnkern.nn.schur_penalty(self.network) if self.own.delta else 0.0
        if self.own.soft:
            penalty += self.own.soft * rnnkern.nn.orthogonal_penalty(self.network)
        self.network.zero_grad()
        (loss + penalty).backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)
        self.optimiser.step()
        if self.multiplicative is not None:
            self.multiplicative.step()
        self.state = detached(state)
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - begun)

    def measure(self) -> float:
        self.network.eval()
        measured = mean_score(self.network, self.task.held_out(), self.task.score, self.device)
        self.network.train()
        return measured


@torch.no_grad()
def mean_score(
    network: Network, batches: Iterable[Batch], score: Callable[[Tensor, Tensor], Tensor], device: torch.device
) -> float:
    """Mean score over all predictions; the state is carried over between batches if they ask for it."""
    total, count, state = 0.0, 0, None
    for x, y, carried in (batch.to(device) for batch in batches):
        answers, state = network(x, state if carried else None)
        scores = score(answers, y)
        total, count = total + scores.double().sum().item(), count + scores.numel()
    return total / count


def train(training: Training, every: int, told: Callable[[str], None] = lambda words: None) -> Iterator[Row]:
    """Runs all updates; yields a row after every ``every`` updates and after the last. ``told`` is called after each
    update."""
    begun, words, last = 0, "", training.settings.updates
    for update in range(1, last + 1):
        training.update()
        told(words)
        if update % every == 0 or update == last:
            measured = training.measure()
            words = f"{training.task.metric} {measured:.4g}"
            yield {
                "update": update,
                "train_loss": significant(statistics.fmean(training.losses[begun:])),
                "measured": significant(measured),
                "seconds": significant(sum(training.seconds)),
                "update_ms": significant(1e3 * statistics.median(training.seconds[begun:])),
            }
            begun = update


def trainings(
    models: Sequence[str], seeds: Sequence[int], task: Task, settings: Settings, every: int, device: torch.device,
    own: Mapping[str, Own], kept: Path | None = None,
) -> Iterator[list[Row]]:  # fmt: skip
    """Trains every model with every seed; yields the rows of each training at its end. Trained parameters are saved in
    the folder ``kept``."""
    with Progress("", len(models) * len(seeds) * settings.updates, "update") as progress:
        for seed, model in itertools.product(seeds, models):

            def told(words: str, at: str = f"{model}, seed {seed}") -> None:
                progress.what = f"{at} {words}"
                progress.advance()

            training = Training(task, model, seed, settings, device, own.get(model))
            facts = {"model": model, "parameters": size(training.network), "seed": seed}
            facts |= {"rate": str(own[model])} if model in own else {}
            yield [facts | row for row in train(training, every, told)]
            if kept is not None:
                kept.mkdir(parents=True, exist_ok=True)
                torch.save(training.network.state_dict(), kept / f"{model}-{seed}.pt")


# ---- the command


def newest(rows: Sequence[Row]) -> list[Row]:
    """Each model's newest run with the same settings as the last row."""
    same = ("task", "data", "length", "batch", "metric", "held_out")
    rows = [row for row in rows if all(row[name] == rows[-1][name] for name in same)]
    dates = {row["model"]: row["date"] for row in rows}
    return [row for row in rows if row["date"] == dates[row["model"]]]


def summary(rows: Sequence[Row]) -> list[Row]:
    """A row per model: mean and range over the seeds of the final metric, and the time per update."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        ends = list({row["seed"]: row for row in own}.values())
        measured = [float(row["measured"]) for row in ends]
        lines.append(
            {
                "model": model,
                "optimizer": f"{ends[0]['optimiser']} {ends[0]['rate']}",
                "hidden": int(ends[0]["hidden"]),
                "parameters": int(ends[0]["parameters"]),
                "updates": int(ends[0]["updates"]),
                "seeds": len(ends),
                "train loss": significant(statistics.fmean(float(row["train_loss"]) for row in ends)),
                ends[0]["metric"]: significant(statistics.fmean(measured)),
                "lowest": min(measured),
                "highest": max(measured),
                "ms per update": significant(statistics.median(float(row["update_ms"]) for row in own)),
            }
        )
    return lines


def arguments() -> argparse.ArgumentParser:
    def number(text: str) -> int:
        if (value := int(text)) < 1:
            raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
        return value

    def seed(text: str) -> int:
        if (value := int(text)) < 0:
            raise argparse.ArgumentTypeError(f"must not be negative, got {value}")
        return value

    defaults = record.table([{"task": name} | shown(kind.settings) for name, kind in TASKS.items()])
    parser = argparse.ArgumentParser(
        prog="python -m perf.train",
        description=__doc__,
        epilog=f"settings of the tasks, where none are chosen:\n\n{defaults}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ours = [name for name in MODELS if name.startswith(record.OURS)]
    parser.add_argument("--task", required=True, choices=TASKS, help="what to learn")
    parser.add_argument("--models", nargs="+", default=ours, choices=MODELS, metavar="MODEL",
                        help=f"of {', '.join(MODELS)}; all of {record.OURS} if none is named")  # fmt: skip
    parser.add_argument("--seeds", nargs="+", type=seed, default=[0, 1, 2], metavar="SEED", help="0 1 2 if not given")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="of " + "; of ".join(
        f"{name}: {kind.files}" for name, kind in TASKS.items() if kind.files))  # fmt: skip
    parser.add_argument("--updates", type=number, help="of the weights, in each training")
    parser.add_argument("--every", type=number, help=f"updates from row to row; {ROWS} rows if not given")
    parser.add_argument("--length", type=number, help="steps of a sequence, or of a chunk of text")
    parser.add_argument("--batch", type=number, help="sequences, or streams of text side by side")
    parser.add_argument("--hidden", type=number, help="hidden units")
    parser.add_argument("--optimiser", choices=OPTIMISERS)
    parser.add_argument("--rate", type=float, help="learning rate; of some models each task has another")
    parser.add_argument("--orthogonal-rate", type=float, help="of orthogonal and unitary parameters of all models")
    parser.add_argument("--delta", type=float, help="factor of the penalty on the moduli of Schur forms")
    parser.add_argument("--gamma", type=float, help="the value that the moduli of NonNormalRNN keep")
    parser.add_argument(
        "--accuracy", action="store_true", help="measured in place of the task's metric, as for copy, ptb"
    )
    parser.add_argument("--clip", type=float, help="the gradient's largest norm; inf for any")
    parser.add_argument("--part", choices=("valid", "test"), default="test",
                        help="held out and measured: test if not given; valid to choose settings by")  # fmt: skip
    parser.add_argument("--held-out", type=number, help="of that part, so many sequences or characters")
    parser.add_argument("--device", type=torch.device, default="cpu", help="cpu if not given")
    parser.add_argument("--threads", type=number, default=2, help="of PyTorch and rnnkern; 2 if not given")
    record.add_output_arguments(parser)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of what each training has learnt, a state_dict")
    parser.add_argument("--quick", action="store_true", help="a look: tiny, one seed, nothing is kept")
    return parser


def shown(settings: Settings) -> Row:
    blank = {"length": "", "held_out": "all"}
    return {name: blank[name] if x is None else x for name, x in settings._asdict().items()}


def settings_of(chosen: argparse.Namespace) -> Settings:
    """Settings from the command line, then those of ``--quick``, then the defaults of the task.

    Raises:
        ValueError: a length is given although the data determine it.
    """
    own = TASKS[chosen.task].settings
    if chosen.quick:
        own = own._replace(**QUICK, length=own.length and QUICK_LENGTH)
    picked = {name: x for name in Settings._fields if (x := getattr(chosen, name)) is not None}
    if own.length is None and "length" in picked:
        raise ValueError(f"--length: the data of {chosen.task} have one, got {chosen.length}")
    return own._replace(**picked)


def main(argv: Sequence[str]) -> None:
    parser = arguments()
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    kind = TASKS[chosen.task]
    if kind.files and chosen.data is None:
        parser.error(f"--task {chosen.task} needs --data FOLDER, which holds {kind.files}")
    try:
        settings = settings_of(chosen)
        task = kind.build(settings, chosen.part, chosen.data)
        if chosen.accuracy:
            task = by_accuracy(task)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    facts = record.facts(chosen.device, shlex.join(["python", "-m", "perf.train", *argv]))
    facts |= {"task": chosen.task, "data": task.data} | shown(settings) | {"length": task.length}
    facts |= {"metric": f"{chosen.part} {task.metric}", "constant": significant(task.constant)}
    out = record.output(chosen, chosen.device)
    path = out.rows / f"train-{chosen.task}.csv"
    seeds = chosen.seeds[:1] if chosen.quick else chosen.seeds
    every = chosen.every or max(1, settings.updates // ROWS)
    own = kind.own
    if chosen.rate is not None:
        own = {model: one._replace(rate=chosen.rate, orthogonal=None) for model, one in own.items()}
    for model in chosen.models:
        one = own.get(model, Own(settings.rate))
        if chosen.orthogonal_rate is not None:
            one = one._replace(orthogonal=chosen.orthogonal_rate)
        if chosen.delta is not None and model == "rnnkern.NonNormalRNN":
            one = one._replace(delta=chosen.delta)
        own = {**own, model: one}
    if chosen.gamma is not None:
        MODELS["rnnkern.NonNormalRNN"] = functools.partial(MODELS["rnnkern.NonNormalRNN"], gamma=chosen.gamma)
    rows = []
    for found in trainings(chosen.models, seeds, task, settings, every, chosen.device, own, chosen.keep):
        rows += (kept := [facts | row for row in found])
        if not chosen.quick:
            record.append(path, kept)
    if not chosen.quick:
        rows = newest(record.read(path))
        train_picture.draw(out.pictures / f"train-{chosen.task}.png", rows)
    print(record.table(summary(rows)))


if __name__ == "__main__":
    main(sys.argv[1:])
