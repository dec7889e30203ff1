"""Recall, transfer to longer sequences, memory and gradients of the relevancy layers."""

import math

import pytest
import torch

pytest.importorskip("matplotlib")

import rnnkern.nn
from perf import gradient, gradient_picture, memory, memory_picture, record, relevancy_tables, transfer
from perf.models import Network, detached
from perf.recall import RECALL
from perf.relevancy_peers import cached_keys, recomputed_keys
from rnnkern.ops import RelevancyState, relevancy_recurrence

CPU = torch.device("cpu")
RUN = ["--models", "rnnkern.RelRNN", "rnnkern.LSTM", "--seeds", "3", "--updates", "4", "--lengths", "20", "30"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- tasks


@pytest.mark.parametrize(("name", "inputs"), [("copy", 10), ("denoise", 11)])
def test_what_is_to_be_recalled(name, inputs):
    x, y, _ = RECALL[name].batch(7, 3, 200, generator())
    assert x.shape == (7 + 6, 200, inputs)
    symbols, mark = x.argmax(-1), inputs - 1
    assert (symbols[7 + 3 - 1] == mark).all()
    assert (symbols[7 + 3 :] == 0).all()
    assert (y[: 7 + 3] == 0).all()
    before = symbols[: 7 + 3 - 1].T
    assert (before > 0).sum(1).tolist() == [3] * 200
    assert torch.equal(before[before > 0].view(200, 3), y[-3:].T)  # in the order in which they stood
    assert set(y[-3:].flatten().tolist()) == set(range(1, inputs - 1))
    stood = (before > 0).any(0)
    assert stood.tolist() == ([True] * 3 + [False] * 6 if name == "copy" else [True] * 9)


def test_only_the_last_steps_are_judged_and_what_is_held_out_stays():
    task = RECALL["copy"].task(7, 3, 4, 150)
    batches = list(task.held_out())
    assert [batch.y.shape[1] for batch in batches] == [100, 50]
    assert torch.equal(batches[1].x, list(task.held_out())[1].x)
    right = torch.nn.functional.one_hot(batches[0].y, 9).float()
    assert task.score(right, batches[0].y).shape == (3, 100)
    assert task.score(right, batches[0].y).all()
    right[:10] = 0  # what comes before does not count
    assert task.score(right, batches[0].y).all()
    fresh = task.training(generator())
    assert not torch.equal(next(fresh).x, next(fresh).x)


# ---- transfer


def test_the_command_keeps_curves_and_tests(tmp_path, capsys):
    transfer.main(["--task", "copy", *RUN, "--threads", "1", "--out", str(tmp_path), "--keep", str(tmp_path / "kept")])
    rows = record.read(tmp_path / "transfer-copy.csv")
    assert [(row["model"], row["phase"], row["length"]) for row in rows] == [
        (model, phase, length) for model in ("rnnkern.RelRNN", "rnnkern.LSTM")
        for phase, length in (("training", "20"), ("test", "20"), ("test", "30"))
    ]  # fmt: skip
    assert (tmp_path / "transfer-copy-small.png").stat().st_size > 10_000
    assert (tmp_path / "kept" / "copy-rnnkern.RelRNN-3.pt").exists()
    assert "learnt: 0" in capsys.readouterr().out
    page = tmp_path / "page.md"
    page.write_text("<!-- copy:begin -->\n<!-- copy:end -->\n<!-- denoise:begin -->\n<!-- denoise:end -->\n")
    relevancy_tables.main([tmp_path.name], page, tmp_path.parent)
    assert "| `rnnkern.RelRNN` | Adam 0.003 | 1 | 0 | 4 |" in page.read_text()
    assert "<!-- denoise:begin -->\n*Not measured yet.*" in page.read_text()


def test_training_ends_when_it_is_known():
    scale = transfer.SCALES["copy", "small"]._replace(enough=0.0, every=2)
    (rows,) = transfer.learn("copy", scale, ["rnnkern.LSTM"], [0], 50, [25], CPU)
    assert [(row["phase"], row["update"], row["length"]) for row in rows] == [("training", 2, 20), ("test", 2, 25)]


def test_the_newest_training_of_each_seed_is_shown():
    def row(date, seed, measured):
        return {"task": "copy", "scale": "small", "date": date, "model": "a", "seed": seed, "phase": "test",
                "measured": measured}  # fmt: skip

    rows = [row("1", "0", 0.1), row("1", "1", 0.2), row("2", "0", 0.3), row("2", "0", 0.4) | {"task": "denoise"}]
    assert [found["measured"] for found in transfer.newest(rows, "copy", "small")] == [0.3, 0.2]


def test_a_state_is_detached_as_what_it_is():
    layer = rnnkern.nn.RelRNN(3, 4, buffer_size=2, relevant_size=1)
    _, state = layer(torch.randn(5, 2, 3))
    found = detached(state)
    assert isinstance(found, RelevancyState)
    assert found.c is None
    assert state.s.requires_grad
    assert not found.s.requires_grad


# ---- memory


@pytest.mark.parametrize(
    ("layer", "peer"),
    [
        (rnnkern.nn.RelRNN, cached_keys),
        (rnnkern.nn.RelRNN, recomputed_keys),
        (rnnkern.nn.RelLSTM, cached_keys),
        (rnnkern.nn.MemRNN, cached_keys),
    ],
)
def test_the_loop_is_the_layer(layer, peer):
    sizes = {} if layer is rnnkern.nn.MemRNN else {"buffer_size": 3, "relevant_size": 2}
    ours, x = layer(3, 8, **sizes), torch.randn(15, 4, 3)
    torch.testing.assert_close(memory.Loop(ours, peer)(x)[0], ours(x)[0], rtol=1e-4, atol=1e-5)


def test_saved_bytes_are_counted_once():
    x, w = torch.randn(100, 10), torch.randn(10, 20, requires_grad=True)
    assert memory.saved_bytes(lambda: torch.tanh(x @ w), [x, w]) == 4 * 2000
    assert memory.saved_bytes(lambda: torch.tanh(x @ w), [w]) == 4 * (2000 + 1000)


def test_layers_keep_what_the_contract_allows_and_grow_as_they_should():
    subjects = [subject for subject in memory.SUBJECTS if subject.form == "fused" and subject.name != "LSTM"]
    rows = list(memory.lines(subjects, 32, 2, (100, 200, 400), CPU, 60.0, 1e9))
    lines = {line["layer"]: line for line in memory.fits(rows)}
    assert all(0.95 < float(line["kept ~"].removeprefix("T^")) < 1.05 for line in lines.values())
    assert lines["RelRNN"]["floats kept"] <= 1.1 * (2 * 32 + 20 + 1)
    with pytest.raises(AssertionError, match="RelRNN at T = 400 keeps"):
        memory.assert_contract(rows[2] | {"saved_bytes": 2 * rows[2]["contract_bytes"]})


def test_loops_grow_with_the_members():
    subjects = [subject for subject in memory.SUBJECTS if subject.form == "loop"]
    rows = list(memory.lines(subjects, 16, 2, (40, 80), CPU, 60.0, 1e9))
    lines = {line["layer"]: line for line in memory.fits(rows)}
    assert lines["RelRNN"]["floats kept"] > 1.8 * 20 * 16 * 0.8  # fewer members at first
    assert float(lines["MemRNN"]["kept ~"].removeprefix("T^")) > 1.8


def test_a_line_ends_before_it_takes_too_long():
    rows = list(memory.lines(memory.SUBJECTS[:1], 8, 1, (10, 10**9), CPU, 60.0, 1e9))
    assert [row["T"] for row in rows] == [10]


# ---- gradients


def test_norms_are_what_the_kernel_sends_to_h():
    """The whole gradient to h, through all later steps: tanh passes 1 - h^2 of it to u."""
    x, y, _ = gradient.drawn(12, 2)
    network = Network(rnnkern.nn.RelRNN(11, 8, buffer_size=4, relevant_size=3), 8, 10, each_step=True)
    (cell, u, *tensors), options = network.rnn._call(x, None, None)
    u = u.detach().requires_grad_()
    h, _ = relevancy_recurrence(cell, u, *tensors, **options)
    loss = torch.nn.functional.cross_entropy(network.head(h)[-5:].flatten(0, 1), y[-5:].flatten())
    (grad,) = torch.autograd.grad(loss, u)
    wanted = (grad / (1 - h.square())).norm(dim=-1).mean(1)
    torch.testing.assert_close(gradient.norms(network, x, y, 5), wanted, rtol=1e-3, atol=1e-6)


def test_norms_of_an_lstm_are_those_of_a_loop():
    x, y, _ = gradient.drawn(12, 2)
    network = Network(rnnkern.nn.LSTM(11, 8), 8, 10, each_step=True)
    cell = torch.nn.LSTMCell(11, 8)
    cell.load_state_dict({name.removesuffix("_l0"): p for name, p in network.rnn.state_dict().items()})
    h = c = torch.zeros(2, 8)
    made = []
    for x_t in x:
        h, c = cell(x_t, (h, c))
        made.append(h)
    answers = network.head(torch.stack(made))
    loss = torch.nn.functional.cross_entropy(answers[-5:].flatten(0, 1), y[-5:].flatten())
    wanted = torch.stack(torch.autograd.grad(loss, made)).norm(dim=-1).mean(1)
    torch.testing.assert_close(gradient.norms(network, x, y, 5), wanted, rtol=1e-3, atol=1e-7)


def test_attention_by_event():
    layer = rnnkern.nn.RelRNN(3, 4, buffer_size=3, relevant_size=2)
    found = gradient_picture.by_event(layer.attention(torch.randn(12, 2, 3)))
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 12))
    assert (found.triu(1) == 0).all()  # nothing of the future
    assert (found.diagonal(dim1=1, dim2=2) > 0).all()


def test_the_command_of_gradients(tmp_path, monkeypatch):
    monkeypatch.setattr(gradient, "UPDATES", 2)
    options = ["--layers", "LSTM", "RelRNN 10/10", "--lengths", "20", "--trained", "15", "--threads", "1"]
    for _ in range(2):  # trains, then reads
        gradient.main([*options, "--keep", str(tmp_path / "kept"), "--out", str(tmp_path)])
    rows = record.read(tmp_path / "gradient.csv")
    assert len(rows) == 2 * 2 * 30
    assert [row["norm"] for row in rows[:60]] == [row["norm"] for row in rows[60:]]
    assert (tmp_path / "gradient.png").stat().st_size > 10_000


def test_the_three_panels(tmp_path):
    options = ["--hidden", "16", "--batch", "2", "--threads", "1", "--out", str(tmp_path / "device")]
    memory.main(["--layers", "LSTM", "RelRNN", "--forms", "fused", "loop", "--lengths", "100", "200", *options])
    shared = {"date": "1", "accuracy": 1.0, "layer": "LSTM"}
    rows = [shared | {"length": n, "t": t, "norm": 0.5**t} for n in (4, 8) for t in range(n)]
    record.append(tmp_path / "device" / "gradient.csv", rows)
    memory_picture.main([str(tmp_path / "device"), "--out", str(tmp_path)])
    assert (tmp_path / "memory.png").stat().st_size > 10_000
    page = tmp_path / "page.md"
    row = {
        "direction": "forward+backward",
        "cell": "tanh",
        "shape": "5x2x3",
        "case": "nu 2, rho 1",
        "over_floor": "1.5",
    }
    row |= {"ms_50": "2.0", "over_floor": "1.5", **dict.fromkeys(("device", "threads", "simd", "torch", "commit"), "?")}
    speeds = [row | {"provider": "rnnkern", "ratio_50": "1.0"}, row | {"provider": "a loop", "ratio_50": "4.25"}]
    record.append(tmp_path / "device" / "relevancy.csv", speeds)
    page.write_text("<!-- memory:begin -->\n<!-- memory:end -->\n<!-- speed:begin -->\n<!-- speed:end -->\n")
    relevancy_tables.main(["device"], page, tmp_path)
    assert "| RelRNN | fused | 200 | " in page.read_text()
    assert "| `tanh` | 5, 2, 3 | nu 2, rho 1 | 4.2 | 2 | 1.50 |" in page.read_text()
    texts = [row | {"length": str(row["length"]), "norm": str(row["norm"])} for row in rows]
    assert memory_picture.mean_log(texts, 4) == pytest.approx(-1.5 * math.log(2))
