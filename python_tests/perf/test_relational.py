"""The relational tasks and games: answers have equal shares and follow from the objects; a sample of trainings reaches
its goals."""

import math
from collections import Counter

import pytest
import torch

from perf import relational, relational_games, relational_shapes
from perf.progress import Progress
from perf.relational_games import COLOURS, GAMES
from perf.relational_runs import RUNS
from perf.relational_tasks import TASKS, split

DRAWS = 100_000
SIGMAS = 4


def generator():
    return torch.Generator().manual_seed(0)


def drawn(name, test, count=DRAWS):
    """Samples of a task, and their pool; sizes are drawn of shapes 0 to N - 1."""
    pool = split(TASKS[name].held, 0)[test]
    if name in ("comparison", "transitive"):
        pool = torch.arange(len(pool))
    return (*TASKS[name].draw(count, pool, generator(), test), pool)


def assert_shares(found, wanted):
    """Each value has its share of the draws within four standard deviations."""
    counts = Counter(found.tolist() if isinstance(found, torch.Tensor) else found)
    total = sum(counts.values())
    assert set(counts) == set(wanted)
    for value, share in wanted.items():
        bound = SIGMAS * math.sqrt(share * (1 - share) / total)
        assert abs(counts[value] / total - share) <= bound, (value, counts[value] / total, share)


def forms(places):
    """Rows of at most ten as letters: equal objects have the same letter, in order of appearance."""
    first = (places.unsqueeze(1) == places.unsqueeze(2)).int().argmax(2)  # where each object appears first
    letters = (first == torch.arange(places.shape[1])).cumsum(1).gather(1, first) - 1
    _, kind = (letters * 10 ** torch.arange(places.shape[1])).sum(1).unique(return_inverse=True)
    examples = letters[torch.empty(int(kind.max()) + 1, dtype=torch.long).scatter_(0, kind, torch.arange(len(kind)))]
    names = ["".join(chr(97 + k) for k in row) for row in examples.tolist()]
    return [names[k] for k in kind.tolist()]


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


def test_answers_follow_from_the_objects():
    places, answer, _ = drawn("RMTS", True, 1000)
    same = [places[:, k] == places[:, k + 1] for k in (0, 2, 4)]
    assert torch.equal(answer, (same[0] == same[2]).long())
    assert (same[1] != same[2]).all()
    for name, number in (("dist3", 3), ("dist10", 10)):
        places, answer, _ = drawn(name, True, 1000)
        missing = places[:, :number].sum(1) - places[:, number : 2 * number - 1].sum(1)  # what completes the second row
        assert torch.equal(places[:, 2 * number - 1 :].gather(1, answer.unsqueeze(1)).squeeze(1), missing)
    for name, width in (("identity rules", 3), ("identity rules 4", 4)):
        places, answer, _ = drawn(name, True, 1000)
        last = places[:, 2 * width - 1 :].gather(1, answer.unsqueeze(1))
        assert forms(places[:, :width]) == forms(torch.cat([places[:, width : 2 * width - 1], last], 1))
    places, answer, _ = drawn("RMTS3", True, 1000)
    source, first, second = (forms(places[:, k : k + 3]) for k in (0, 3, 6))
    assert [int(c == a) for a, b, c in zip(source, first, second, strict=True)] == answer.tolist()
    assert all((a == b) != (a == c) for a, b, c in zip(source, first, second, strict=True))
    places, answer, _ = drawn("same/different 6", True, 1000)
    assert torch.equal(answer, (places[:, :3] != places[:, 3:]).any(1).long())
    for name in ("comparison", "transitive"):
        for test in (False, True):
            places, answer, pool = drawn(name, test, 1000)
            size = places // len(pool)
            assert torch.equal(answer, size.argmax(1))
            assert (places[:, 0] % len(pool) == places[:, 1] % len(pool)).all()
            if name == "transitive":
                assert set((size[:, 0] + size[:, 1]).tolist()) == ({2} if test else {1, 3})


# ---- games


@pytest.mark.parametrize("name", GAMES)
def test_games(name):
    """Shares of answers, and the answers from what is in the cells."""
    game, answers = GAMES[name]
    cells, answer = game(DRAWS, 8, generator())
    assert_shares(answer, dict.fromkeys(range(answers), 1 / answers))
    full = cells >= 0
    number = {"between": 3, "occurs": 4, "xoccurs": 4, "row matching": 6}.get(name, 2)
    assert (full.sum(1) == number).all()
    where = full.int().topk(number, dim=1).indices.sort(1).values
    things = cells.gather(1, where)
    shape, colour = things // COLOURS, things % COLOURS
    if name == "same":
        assert torch.equal(answer, (things[:, 0] == things[:, 1]).long())
    elif name == "colour/shape":
        of = torch.stack([shape[:, 0] != shape[:, 1], colour[:, 0] != colour[:, 1]], 1).int()
        assert torch.equal(answer, torch.tensor([[0, 1], [2, 3]])[of[:, 0], of[:, 1]])
    elif name == "between":
        on_line = relational_games.is_line(where)
        assert torch.equal(answer == 1, on_line & (things[:, 0] == things[:, 2]))
    elif name in ("occurs", "xoccurs"):
        found = (things[:, :1] == things[:, 1:]).any(1)
        pairs = things[:, 1:].sort(1).values.diff(dim=1).eq(0).any(1)
        assert torch.equal(answer == 1, found if name == "occurs" else found & ~pairs)
    elif name == "row matching":
        alike = [a == b for a, b in zip(forms(things[:, :3]), forms(things[:, 3:]), strict=True)]
        assert answer.bool().tolist() == alike
    else:
        order = where % 3 * 3 - where // 3  # from left to right, in a column from below
        dark = relational_shapes.luminance()[colour].argmin(1)
        assert torch.equal(answer, (order.argmin(1) == dark).long())


# ---- trainings


SAMPLE = [run for run in RUNS if run.group in ("equality", "clean") or run.name == "comparison"]


@pytest.mark.proof
@pytest.mark.parametrize("run", SAMPLE, ids=lambda run: f"{run.group}, {run.name}, {run.model}")
@pytest.mark.drawn
def test_a_sample_of_the_trainings_reaches_its_goals(run):
    """About a minute for all. `python -m perf.relational` has the others."""
    with Progress("", run.updates, "update") as progress:
        rows = relational.train(run, 0, progress)
    for row in rows:
        assert run.least <= row["accuracy"] <= run.most
