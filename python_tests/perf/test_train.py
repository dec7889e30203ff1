"""Tasks, models, trainings, and what is kept of them."""

import itertools
import math
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")

from perf import record, tasks, train, train_picture, train_tables
from perf.datasets import Images, encoded
from perf.models import MODELS, Network, detached
from perf.tasks import TASKS, Settings, Task
from perf.train import Training, mean_score
from python_tests.perf.test_datasets import write_mnist, write_ptb

CPU = torch.device("cpu")
TINY = Settings(length=6, batch=20, hidden=12, optimiser="Adam", rate=2e-2, clip=1.0, updates=100, held_out=200)
PEERS = [name for name in MODELS if name.startswith("torch.")]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- adding problem


def test_adding_has_a_mark_in_each_half_and_their_sum():
    x, y = tasks.sums(7, 500, generator())[:2]
    assert x.shape == (7, 500, 2)
    numbers, marks = x.unbind(-1)
    assert torch.equal(marks[:3].sum(0), torch.ones(500))
    assert torch.equal(marks[3:].sum(0), torch.ones(500))
    assert torch.equal((numbers * marks).sum(0), y)
    assert (marks.sum(1) > 0).all()  # at every step at some time


def test_adding_is_worth_its_baseline():
    """The answer 1 has the mean squared error 1/6, the variance of two uniform numbers."""
    count = 40_000
    y = tasks.sums(10, count, generator()).y.double()
    assert abs(y.mean() - 1) < 4 * math.sqrt(1 / 6 / count)
    squares = (y - 1).square()
    assert abs(squares.mean() - 1 / 6) < 4 * squares.std() / math.sqrt(count)
    assert tasks.adding(TINY._replace(held_out=count), "test", None).constant == pytest.approx(1 / 6, rel=0.03)


def test_what_is_held_out_of_adding_is_its_own():
    valid, test = (list(tasks.adding(TINY._replace(held_out=700), part, None).held_out()) for part in ("valid", "test"))
    again = list(tasks.adding(TINY._replace(held_out=700), "test", None).held_out())
    assert [len(y) for _, y, _ in test] == [500, 200]
    assert all(torch.equal(a.x, b.x) for a, b in zip(test, again, strict=True))
    assert not torch.equal(valid[0].x, test[0].x)
    task = tasks.adding(TINY, "test", None)
    firsts = [next(task.training(generator(seed))).x for seed in (0, 0, 1)]
    assert torch.equal(firsts[0], firsts[1])
    assert not torch.equal(firsts[0], firsts[2])


# ---- images


@pytest.fixture
def images() -> Images:
    """A bright or a dark image, and its class."""
    y = torch.arange(60) % 2
    x = y + torch.rand(5, 60, generator=generator()) / 4
    return Images(x[:, :48, None], y[:48], x[:, 48:, None], y[48:])


def test_an_epoch_has_every_image_once(images):
    task = tasks.classification(images, TINY._replace(length=None), "test", "images")
    batches = list(itertools.islice(task.training(generator()), 6))  # of 20, 20 and 8, twice
    epochs = [torch.cat([x for x, _, _ in part], 1) for part in (batches[:3], batches[3:])]
    assert not torch.equal(*epochs)
    for epoch in epochs:
        assert torch.equal(epoch[0].sort(0).values, images.train_x[0].sort(0).values)
    assert task.length == 5


def test_images_held_out(images):
    def held_out(part: str, count: int | None) -> torch.Tensor:
        task = tasks.classification(images, TINY._replace(held_out=count), part, "images")
        return torch.cat([x for x, _, _ in task.held_out()], 1)

    assert torch.equal(held_out("test", None), images.test_x)
    assert torch.equal(held_out("test", 7), images.test_x[:, :7])
    assert torch.equal(held_out("valid", None), images.train_x[:, 40:])
    assert tasks.classification(images, TINY, "test", "images").constant == 0.5


# ---- text


def test_chunks_are_streams_that_go_on():
    text = torch.arange(24, dtype=torch.uint8)
    found = list(tasks.chunks(text, symbols=24, batch=3, length=3))
    assert [batch.carried for batch in found] == [False, True, True]
    x, y = (torch.cat(parts) for parts in zip(*((batch.x.argmax(-1), batch.y) for batch in found), strict=True))
    assert torch.equal(x.T, torch.arange(21).view(3, 7))
    assert torch.equal(y, x + 1)
    assert torch.equal(found[0].x.sum(-1), torch.ones(3, 3))
    with pytest.raises(ValueError, match="a text for 24 streams must have at least 25 characters, got 24"):
        next(tasks.chunks(text, symbols=24, batch=24, length=3))


SENTENCE = "the quick brown fox jumps over the lazy dog\n"


@pytest.fixture
def language() -> Task:
    text = encoded(SENTENCE * 20, SENTENCE * 2, SENTENCE * 10)
    return tasks.language(text, TINY._replace(batch=4, held_out=None), "test", "a sentence")


def test_a_text_is_begun_anywhere_and_ended(language):
    batches = list(itertools.islice(language.training(generator()), 80))
    begun = [k for k, batch in enumerate(batches) if not batch.carried]
    assert begun == [0, 37, 74]  # 879 characters in 4 streams are 219 steps, 37 chunks of 6
    assert len({tuple(batches[k].y[:, 0].tolist()) for k in begun}) > 1


def test_a_constant_answer_gets_the_entropy(language):
    counts = torch.tensor([float(SENTENCE.count(c)) for c in sorted(set(SENTENCE))])
    entropy = -(counts / 44 * (counts / 44).log2()).sum().item()
    assert language.constant == pytest.approx(entropy, rel=1e-2)  # but for the symbol that never comes


def test_an_even_answer_costs_its_logarithm_in_bits():
    scores = tasks.bits(torch.zeros(3, 2, 8), torch.randint(8, (3, 2)))
    assert scores.tolist() == pytest.approx([3.0] * 6)


@pytest.mark.parametrize("model", ["rnnkern.LSTM", "torch.GRU"])
def test_chunks_are_measured_as_one_sequence(model, language):
    """The state is carried: it does not matter where a text is cut."""
    network = Network(MODELS[model](language.inputs, 8), 8, language.outputs, True).double()
    network.requires_grad_(False)

    def measured(length: int, forget: bool = False) -> float:
        text = encoded(SENTENCE, "", SENTENCE * 10).test
        batches = tasks.chunks(text, language.inputs, 4, length)
        batches = [b._replace(x=b.x.double(), carried=b.carried and not forget) for b in batches]
        return mean_score(network, batches, language.score, CPU)

    assert measured(7) == pytest.approx(measured(1000), rel=1e-9)
    assert measured(7, forget=True) != pytest.approx(measured(1000), rel=1e-5)


def test_gradients_end_at_a_chunk_and_the_state_does_not(language):
    training = Training(language, "rnnkern.LSTM", 0, TINY._replace(batch=4), CPU)
    seen = []
    training.network.rnn.register_forward_hook(lambda module, args, output: seen.append((args[1], output[1])))
    training.update()
    training.update()
    (first, after), (carried, _) = seen
    assert first is None
    assert all(torch.equal(a, b) for a, b in zip(after, carried, strict=True))
    assert all(state.requires_grad for state in after)
    assert not any(state.requires_grad for state in carried)


def test_nested_states_are_detached():
    x = torch.ones(2, requires_grad=True)
    a, (b, c) = detached((x * 2, (x * 3, x * 4)))
    assert [t.requires_grad for t in (a, b, c)] == [False] * 3
    assert c.tolist() == [4, 4]


# ---- models


@pytest.mark.parametrize("model", MODELS)
def test_models_answer_at_each_step_or_after_the_last(model):
    torch.manual_seed(0)
    network = Network(MODELS[model](3, 8), 8, 5, each_step=True)
    x = torch.randn(6, 2, 3)
    whole, _ = network(x)
    assert whole.shape == (6, 2, 5)
    first, state = network(x[:4])
    torch.testing.assert_close(torch.cat([first, network(x[4:], state)[0]]), whole)
    network.each_step = False
    torch.testing.assert_close(network(x)[0], whole[-1])


@pytest.mark.parametrize("peer", PEERS)
def test_a_layer_and_its_peer_begin_with_the_same_weights(peer):
    ours, theirs = [], []
    for name, found in ((peer.replace("torch", "rnnkern"), ours), (peer, theirs)):
        training = Training(tasks.adding(TINY, "test", None), name, 3, TINY, CPU)
        found += [training.network.state_dict(), next(training.batches)]
    assert ours[0].keys() == theirs[0].keys()
    assert all(torch.equal(ours[0][key], theirs[0][key]) for key in ours[0])
    assert torch.equal(ours[1].x, theirs[1].x)


def test_the_seed_decides_weights_and_batches():
    trainings = [Training(tasks.adding(TINY, "test", None), "rnnkern.GRU", seed, TINY, CPU) for seed in (0, 1)]
    assert not torch.equal(*(training.network.rnn.weight_hh_l0 for training in trainings))
    assert not torch.equal(*(next(training.batches).x for training in trainings))


def test_initial_values():
    lstm = MODELS["rnnkern.LSTM"](2, 3)
    assert lstm.bias_hh_l0[3:6].tolist() == [1, 1, 1]
    assert (lstm.bias_hh_l0[:3].abs() < 1).all()
    relu, modrelu = (MODELS[f"rnnkern.RNN-{kind}"](2, 3) for kind in ("relu", "modrelu"))
    assert torch.equal(relu.weight_hh_l0, torch.eye(3))
    R = modrelu.weight_hh_l0
    torch.testing.assert_close(R @ R.T, torch.eye(3))
    assert (relu.nonlinearity, modrelu.nonlinearity) == ("relu", "modrelu")
    assert MODELS["rnnkern.RNN"](2, 3).nonlinearity == "tanh"


# ---- trainings


def test_adding_is_learnt():
    settings = TINY._replace(length=4, updates=300)
    *_, last = train.train(Training(tasks.adding(settings, "test", None), "rnnkern.GRU", 0, settings, CPU), 100)
    assert last["update"] == 300
    assert last["measured"] < 0.2 / 6
    assert last["train_loss"] < 0.2 / 6


def test_images_are_learnt(images):
    task = tasks.classification(images, TINY, "test", "images")
    first, *_, last = train.train(Training(task, "rnnkern.LSTM", 0, TINY, CPU), 20)
    assert last["train_loss"] < first["train_loss"] / 2
    assert last["measured"] == 1


def test_a_text_is_learnt(language):
    training = Training(language, "rnnkern.LSTM", 0, TINY._replace(batch=4, hidden=24, updates=150), CPU)
    *_, last = train.train(training, 50)
    assert last["measured"] < language.constant / 2


def test_a_row_is_of_what_came_since_the_one_before():
    training = Training(tasks.adding(TINY, "test", None), "rnnkern.RNN", 0, TINY._replace(updates=7), CPU)
    heard = []
    rows = list(train.train(training, 3, heard.append))
    assert [row["update"] for row in rows] == [3, 6, 7]
    assert rows[1]["train_loss"] == pytest.approx(sum(training.losses[3:6]) / 3, rel=1e-3)
    assert rows[2]["seconds"] == pytest.approx(sum(training.seconds), rel=1e-3)
    assert len(heard) == 7
    assert heard[0] == ""
    assert heard[3] == f"MSE {rows[0]['measured']}"


# ---- the command

RUN = ["--models", "rnnkern.GRU", "torch.GRU", "--length", "6", "--batch", "8", "--hidden", "5", "--updates", "6"]
RUN += ["--every", "2", "--held-out", "50", "--threads", "1"]


def test_the_same_seeds_give_the_same_numbers(tmp_path, capsys):
    rows = []
    for name in ("one", "two"):
        train.main(["--task", "adding", *RUN, "--seeds", "4", "7", "--out", str(tmp_path / name)])
        rows.append(record.read(tmp_path / name / "train-adding.csv"))
        assert (tmp_path / name / "train-adding.png").stat().st_size > 10_000
    for one, two in zip(*rows, strict=True):
        assert {k for k in one if one[k] != two[k]} <= {"date", "command", "seconds", "update_ms"}
    found = [(row["seed"], row["model"], row["update"]) for row in rows[0]]
    assert found == list(itertools.product("47", ["rnnkern.GRU", "torch.GRU"], "246"))
    assert len({row["train_loss"] for row in rows[0] if row["model"] == "rnnkern.GRU"}) == 6
    row = rows[0][0]
    assert all(row[name] for name in ("commit", "device", "torch", "command"))
    assert (row["task"], row["metric"], row["length"], row["held_out"]) == ("adding", "test MSE", "6", "50")
    out = capsys.readouterr().out
    assert all(words in out for words in ("test MSE", "lowest", "highest", "ms per update", "torch.GRU"))


def test_a_csv_grows_and_the_newest_run_is_shown(tmp_path, monkeypatch):
    dates = iter(["2099-01", "2099-02"])
    monkeypatch.setattr(record, "now", lambda: next(dates))
    for seed, models in (("0", []), ("1", ["--models", "torch.GRU"])):
        train.main(["--task", "adding", *RUN, *models, "--seeds", seed, "--out", str(tmp_path)])
    rows = record.read(tmp_path / "train-adding.csv")
    assert len(rows) == 9
    shown = [(row["model"], row["seed"]) for row in train_tables.newest(rows)]
    assert shown == [("rnnkern.GRU", "0")] * 3 + [("torch.GRU", "1")] * 3
    elsewhere = rows[-1] | {"length": "99"}
    assert train_tables.newest([*rows, elsewhere]) == [elsewhere]


@pytest.mark.parametrize("task", [name for name, kind in TASKS.items() if not kind.files])
def test_a_quick_look_keeps_nothing(task, tmp_path, capsys):
    if task == "digits":
        pytest.importorskip("sklearn")
    train.main(["--task", task, "--quick", "--threads", "1", "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [name for name in MODELS if name.startswith("rnnkern")]


@pytest.mark.parametrize(("task", "write"), [("mnist", write_mnist), ("ptb", write_ptb)])
def test_data_of_the_user(task, write, tmp_path, capsys):
    options = ["--task", task, "--quick", "--batch", "2", "--models", "rnnkern.GRU", "--threads", "1"]
    train.main([*options, "--data", str(write(tmp_path))])
    assert "rnnkern.GRU" in capsys.readouterr().out


WRONG = {
    "no folder": (["--task", "mnist"], "--task mnist needs --data FOLDER, which holds the four IDX files"),
    "nothing there": (["--task", "ptb", "--data", "nowhere"], r"ptb\.char\.train\.txt: wanted this file or train\.txt"),
    "model": (["--task", "adding", "--models", "torch.QRNN"], "invalid choice: 'torch.QRNN'"),
    "length": (["--task", "digits", "--length", "9"], "--length: the data of digits have one, got 9"),
    "no delay": (["--task", "copy", "--length", "0"], "--length: must be at least 1, got 0"),
    "short": (["--task", "adding", "--length", "1"], "adding: the length must be at least 2, .* got 1"),
    "no updates": (["--task", "adding", "--updates", "0"], "--updates: must be at least 1, got 0"),
    "seed": (["--task", "adding", "--seeds", "-1"], "--seeds: must not be negative, got -1"),
}


@pytest.mark.parametrize(("argv", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_done_is_said(argv, said, capsys):
    with pytest.raises(SystemExit):
        train.main(argv)
    error = capsys.readouterr().err
    assert re.search(said, error), error


# ---- tables and picture


def row(model: str, seed: int, update: int, measured: float, **others) -> record.Row:
    facts = {"date": "2099", "commit": "abc", "device": "a processor", "threads": 2, "simd": "avx2", "torch": "2.13.0"}
    about = {"task": "adding", "data": "generated", "length": 9, "batch": 4, "held_out": 50, "metric": "test MSE"}
    own = {"hidden": 8, "optimiser": "Adam", "rate": 0.01, "clip": 1.0, "updates": 2, "parameters": 99}
    curve = {"seed": seed, "update": update, "train_loss": 2 * measured, "measured": measured, "update_ms": update}
    found = facts | about | own | {"model": model, "constant": 0.1667} | curve | others
    return {name: str(x) for name, x in found.items()}


ROWS = [row("rnnkern.GRU", seed, update, 0.5 / update + seed) for seed in (0, 2) for update in (1, 2)]


def test_summary():
    (line,) = train_tables.summary(ROWS)
    assert line == {
        "model": "rnnkern.GRU",
        "optimiser": "Adam 0.01",
        "hidden": 8,
        "parameters": 99,
        "updates": 2,
        "seeds": 2,
        "train loss": 2.5,
        "test MSE": 1.25,
        "lowest": 0.25,
        "highest": 2.25,
        "ms per update": 1.5,
    }


def test_the_page_is_filled(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- adding:begin -->\nold\n<!-- adding:end -->\n<!-- ptb:begin -->\n<!-- ptb:end -->\n")
    record.append(tmp_path / "device" / "train-adding.csv", ROWS)
    train_tables.main(["elsewhere", "device"], page, tmp_path)
    text = page.read_text()
    assert "old" not in text
    assert (
        "| `rnnkern.GRU` | Adam 0.01 | 8 | 99 | 2 | 2 | 2.5 | 1.25 | 0.25 | 2.25 | 1.5 |\n\n*generated; T = 9" in text
    )
    assert (tmp_path / "images" / "train-adding.png").stat().st_size > 10_000
    assert "<!-- ptb:begin -->\n*Not measured yet.*\n<!-- ptb:end -->" in text


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([0.1, 0.2, 0.3] * 10, 0.315), ([*[0.1, 0.2] * 20, 1e9, math.nan], 0.21), ([math.nan], 1.05), ([0.0], 1.0)],
    ids=["all", "outliers", "nothing", "zeros"],
)
def test_outliers_do_not_set_the_scale(values, wanted):
    assert train_picture.top([{"measured": str(x)} for x in values], "measured") == pytest.approx(wanted)


def test_a_training_that_fails_is_drawn_too(tmp_path: Path):
    failed = [row("torch.GRU", 0, update, math.nan) for update in (1, 2)]
    train_picture.draw(tmp_path / "a.png", [*ROWS, *failed])
    assert (tmp_path / "a.png").stat().st_size > 10_000
