"""Trains relational models on generated tasks and tests them on shapes, colours or relations that they have not seen
(Kerg et al. 2022; Webb et al. 2021). Prints a table beside the published results, and draws a picture.

``python -m perf.relational`` needs no download. ``--only clean spurious`` chooses groups of runs, ``--quick`` is a look
of two minutes that keeps nothing. Seconds are those of the processor, so that other work on the machine does not count.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from perf import record, relational_shapes
from perf.progress import Progress
from perf.record import Row
from perf.relational_games import GAMES, task_of
from perf.relational_models import Network, model_of
from perf.relational_runs import EQUALITY, GROUPS, RUNS, Run
from perf.relational_tasks import TASKS, Task, split
from rnnkern.nn import CoRelNet

RATE, SAMPLES, PART = 5e-4, 3000, 250
"""Adam's learning rate, the number of test samples, and how many of them at once."""
CSV = "relational.csv"


class Source(NamedTuple):
    """Draws samples: places (B, T) into a table, and answers."""

    task: Task
    side: int  # pixels
    draw: Callable[[int, torch.Generator, bool], tuple[Tensor, Tensor]]
    pictures: Callable[[Tensor, bool], Tensor]  # of places, for training or for the test


def source_of(run: Run, seed: int, test: str = "") -> Source:
    """The samples of a run; ``test`` names the test's objects in a game."""
    if run.task in GAMES:
        return source_of_game(run, test)
    task = TASKS[run.task]
    kind = "bitmaps" if run.pictures == EQUALITY else run.pictures
    pools = split(task.held if run.held is None else run.held, seed)
    table = (
        relational_shapes.sizes(seed)
        if run.task in ("comparison", "transitive")
        else relational_shapes.shapes(kind, seed)
    )
    palette = relational_shapes.colours(seed)

    def draw(count, generator, test):
        pool = torch.arange(len(pools[test]))
        places, answer = task.draw(count, pool, generator, test)
        if run.spurious:
            colours = torch.randint(len(palette), places.shape, generator=generator)
            if run.spurious == "colours":
                return places * len(palette) + colours, answer
            return torch.stack([places, len(pool) + colours], 2).flatten(1), answer
        return places, answer

    def pictures(places, test):
        pool = pools[test]
        if table.dim() == 5:
            return table[:, pool].flatten(0, 1)[places]
        if run.spurious == "colours":
            return table[pool[places // len(palette)]] * palette[places % len(palette), :, None, None]
        if run.spurious == "separated":
            plain = palette[:, :, None, None].expand(-1, -1, *table.shape[2:])
            return torch.cat([table[pool], plain])[places]
        return table[pool[places]]

    if run.spurious == "separated":
        task = task._replace(objects=2 * task.objects)
    return Source(task, relational_shapes.SIDE, draw, pictures)


def source_of_game(run: Run, test: str) -> Source:
    task = task_of(run.task)
    tables = [relational_shapes.game_objects(kind)[0] for kind in (run.pictures, test or "hexominoes")]

    def draw(count, generator, test):
        return task.draw(count, torch.arange(len(tables[test])), generator, test)

    return Source(task, relational_shapes.CELL, draw, lambda places, test: tables[test][places])


# ---- training


class Model(NamedTuple):
    parameters: list[torch.nn.Parameter]
    logits: Callable[[Tensor, Source, bool], Tensor]  # of places
    penalty: Callable[[], Tensor | float]


def made(run: Run, source: Source) -> Model:
    """The run's model, from torch's random state."""
    T, answers = source.task.objects, source.task.answers
    if run.pictures == EQUALITY:
        decoder = CoRelNet(1, T, answers).decoder
        i, j = torch.tril_indices(T, T)

        def of_equality(places, source, test):
            E = (places.unsqueeze(2) == places.unsqueeze(1)).float().tril()
            return decoder((E / E.sum(-1, keepdim=True))[:, i, j])

        return Model(list(decoder.parameters()), of_equality, lambda: 0.0)
    network = Network(model_of(run.model, T, answers, **run.options), source.side, run.penalty > 0)

    def of_pictures(places, source, test):
        used, places = places.unique(return_inverse=True)  # each picture is encoded once
        return network(source.pictures(used, test), places)

    penalty = (lambda: run.penalty * network.absolute()) if run.penalty else (lambda: 0.0)
    return Model(list(network.parameters()), of_pictures, penalty)


def train(run: Run, seed: int, progress: Progress) -> list[Row]:
    """Trains one model; a row for each test."""
    torch.manual_seed(seed)
    source = source_of(run, seed)
    model, generator = made(run, source), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters, RATE)
    begun = time.process_time()
    for _ in range(run.updates):
        places, answer = source.draw(run.batch, generator, False)
        loss = F.cross_entropy(model.logits(places, source, False), answer) + model.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.advance()
    seconds = time.process_time() - begun
    held = source.task.held if run.held is None else run.held
    rows = []
    for test in ("hexominoes", "stripes") if run.task in GAMES else ("",):
        if test == "stripes" and run.task in ("colour/shape", "left-of"):
            continue  # stripes have no shape, and two colours
        tested = source_of(run, seed, test) if test else source
        rows.append({
            "group": run.group, "run": run.name, "task": run.task, "model": run.model, "pictures": run.pictures,
            "held": held, "updates": run.updates, "batch": run.batch, "seed": seed, "test": test or "held-out shapes",
            "accuracy": round(accuracy(model, tested, seed), 4), "least": run.least if test != "stripes" else 0.0,
            "most": run.most, "published": run.published, "seconds": round(seconds, 1),
        })  # fmt: skip
    return rows


@torch.no_grad()
def accuracy(model: Model, source: Source, seed: int) -> float:
    """The share of right answers to new samples of the test."""
    generator, right = torch.Generator().manual_seed(10_000 + seed), 0
    for _ in range(SAMPLES // PART):
        places, answer = source.draw(PART, generator, True)
        right += int((model.logits(places, source, True).argmax(1) == answer).sum())
    return right / SAMPLES


# ---- tables and the picture


def summary(rows: Sequence[Row]) -> list[Row]:
    """A line for each run and test: accuracies of its seeds, per cent, and the goal."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in ("group", "run", "model", "test")), []).append(row)
    lines = []
    for (group, name, model, test), of_run in groups.items():
        first, found = of_run[0], [100 * row["accuracy"] for row in of_run]
        least, most = 100 * first["least"], 100 * first["most"]
        goal = f">= {least:g}" if least and most == 100 else f"<= {most:g}" if not least and most < 100 else ""
        goal = goal or (f"{least:g} to {most:g}" if most < 100 else "")
        missed = sum(not least <= x <= most for x in found)
        lines.append({
            "group": group, "run": name, "model": model, "test": test, "accuracy": " ".join(f"{x:.1f}" for x in found),
            "goal": goal + (f", {missed} missed" if missed else ""), "published": first["published"],
            "seconds": round(sum(row["seconds"] for row in of_run) / len(of_run), 1),
        })  # fmt: skip
    return lines


def newest(rows: Sequence[dict[str, str]]) -> list[Row]:
    """The last row of each training and test in a CSV, in the order of the groups."""
    kept: dict[tuple, Row] = {}
    for row in rows:
        numbers = {name: float(row[name]) for name in ("accuracy", "least", "most", "seconds")}
        kept[tuple(row[name] for name in ("group", "run", "model", "test", "seed"))] = row | numbers
    order = {(run.group, run.name, run.model): k for k, run in enumerate(RUNS)}
    known = [row for row in kept.values() if (row["group"], row["run"], row["model"]) in order]
    return sorted(known, key=lambda row: order[row["group"], row["run"], row["model"]])


def draw(rows: Sequence[Row], folder: Path) -> None:
    """A dot for each seed, and a cross for the published accuracy."""
    from perf.figure import COLOURS, STYLE, plt, save

    lines = summary(rows)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8.5, 1.2 + 0.24 * len(lines)), layout="constrained")
        for y, line in enumerate(lines):
            colour = COLOURS[GROUPS.index(line["group"]) % len(COLOURS)]
            found = [float(x) for x in line["accuracy"].split()]
            axes.plot(found, [y] * len(found), "o", color=colour, markersize=5, alpha=0.8)
            if printed := published(line):
                axes.plot(printed, y, "x", color="#333333", markersize=6)
        names = [f"{line['run']}, {line['model']}" + (f", {line['test']}" if line["group"] == "games" else "")
                 for line in lines]  # fmt: skip
        axes.set_yticks(range(len(lines)), names, fontsize=8)
        for group in GROUPS:
            inside = [y for y, line in enumerate(lines) if line["group"] == group]
            if inside:
                axes.axhspan(
                    min(inside) - 0.5, max(inside) + 0.5, color="#000000", alpha=0.04 * (GROUPS.index(group) % 2)
                )
                axes.text(20.5, min(inside), group, fontsize=8, va="center")
        axes.invert_yaxis()
        axes.set(xlim=(20, 101), xlabel="accuracy on what training has not shown, %; crosses: published")
        axes.grid(axis="x", color="#eeeeee")
        save(figure, folder / "relational.png")


def published(line: Row) -> float | None:
    """The published accuracy of the line's test, if it is a number."""
    numbers = line["published"].split(" / ")
    text = numbers[1] if line["test"] == "stripes" and len(numbers) > 1 else numbers[0]
    try:
        return float(text)
    except ValueError:
        return None


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description="Trains relational models on generated tasks; tests them on what training has not shown."
    )
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS, help="groups of runs, all if not given")
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS, *GAMES], help="runs of these tasks alone")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each run; 1 if not given")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch; 1 if not given")
    parser.add_argument("--quick", action="store_true", help="a look: runs of a few seconds, nothing is kept")
    record.add_output_arguments(parser)
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    torch.set_flush_denormal(True)  # Adam's moments of weights without gradient decay to subnormal numbers
    runs = [run for run in RUNS if run.group in chosen.only and (not chosen.tasks or run.task in chosen.tasks)]
    if chosen.quick:
        runs = [run for run in runs if run.group in ("equality", "clean") or run.task == "comparison"]
    output, rows = record.output(chosen, torch.device("cpu")), []
    facts = record.facts(torch.device("cpu"), shlex.join(["python", "-m", "perf.relational", *argv]))
    with Progress("relational tasks", sum(run.updates for run in runs) * chosen.seeds, "update") as progress:
        for run in runs:
            for seed in range(chosen.seeds):
                new = train(run, seed, progress)
                rows += new
                if not chosen.quick:
                    record.append(output.rows / CSV, [facts | row for row in new])
                progress.what = f"relational tasks: {run.group}, {run.name}, {run.model}: {new[0]['accuracy']:.3f}"
    print(record.table(summary(rows)))
    if not chosen.quick:
        draw(newest(record.read(output.rows / CSV)), output.pictures)
        print(f"rows: {output.rows / CSV}; picture: {output.pictures / 'relational.png'}")


if __name__ == "__main__":
    main(sys.argv[1:])
