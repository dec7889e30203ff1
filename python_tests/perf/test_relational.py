"""The relational tasks: answers have equal shares, pools do not mix, and trainings reach their goals."""

import math
from collections import Counter

import pytest
import torch

from perf import record, relational
from perf.progress import Progress
from perf.relational_runs import RUNS
from perf.relational_tasks import TASKS, split

DRAWS = 100_000
SIGMAS = 6


def drawn(name, test):
    """Samples of a task, and their pool; sizes are drawn of shapes 0 to N - 1."""
    pool = split(TASKS[name].held, 0)[test]
    if name in ("comparison", "transitive"):
        pool = torch.arange(len(pool))
    return (*TASKS[name].draw(DRAWS, pool, torch.Generator().manual_seed(0), test), pool)


def assert_shares(found, wanted):
    """Each value has its share of the draws within six standard deviations."""
    counts = Counter(found.tolist() if isinstance(found, torch.Tensor) else found)
    total = sum(counts.values())
    assert set(counts) == set(wanted)
    for value, share in wanted.items():
        bound = SIGMAS * math.sqrt(share * (1 - share) / total)
        assert abs(counts[value] / total - share) <= bound, (value, counts[value] / total, share)


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("name", TASKS)
def test_answers_have_equal_shares_and_pools_do_not_mix(name, test):
    places, answer, pool = drawn(name, test)
    task = TASKS[name]
    assert places.shape == (DRAWS, task.objects)
    assert_shares(answer, dict.fromkeys(range(task.answers), 1 / task.answers))
    sizes = 3 if name in ("comparison", "transitive") else 1
    assert set((places % len(pool) if sizes == 3 else places).unique().tolist()) == set(pool.tolist())
    training, held = split(task.held, 0)
    assert sorted([*training.tolist(), *held.tolist()]) == list(range(100))


def trained(run, seed=0):
    with Progress("", run.updates, "update") as progress:
        return relational.train(run, seed, progress)


def test_a_training_of_every_group_runs(monkeypatch):
    monkeypatch.setattr(relational, "SAMPLES", relational.PART)
    first = {(run.group, run.model, run.spurious): run for run in reversed(RUNS)}
    rows = [row for run in first.values() for row in trained(run._replace(updates=1, batch=8))]
    rows = [{name: str(value) for name, value in row.items()} for row in rows]
    assert record.table(relational.summary(relational.newest(rows)))


SAMPLE = [run for run in RUNS if run.group in ("equality", "clean") or run.name == "comparison"]


@pytest.mark.proof
@pytest.mark.parametrize("run", SAMPLE, ids=lambda run: f"{run.group}, {run.name}, {run.model}")
def test_a_sample_of_the_trainings_reaches_its_goals(run):
    """About a minute for all. `python -m perf.relational` has the others."""
    for row in trained(run):
        assert run.least <= row["accuracy"] <= run.most
