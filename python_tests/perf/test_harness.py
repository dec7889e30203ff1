"""What may be timed: only right results, until ratios are steady, and whatever else fails."""

import contextlib
import itertools
import time

import pytest
import torch

from perf import harness, record
from perf.harness import OURS, Case, Effort, NoKernel, Problem, WrongResult

CPU = torch.device("cpu")
EFFORT = Effort(0.0, 3, 3)
TRUTH = torch.linspace(1, 2, 100, dtype=torch.float64)


def case(name: str = "a", *, ours: float = 0.0, peer: float = 0.0, wrong_seeds=range(99), kinked: bool = False) -> Case:
    """A call and its peer, whose last elements are wrong by the given amounts."""

    def value(error: float):
        y = TRUTH.float()
        y[-1] += error
        return {"y": y}

    def build(seed: int) -> Problem:
        mine = ours if seed in wrong_seeds else 0.0
        calls = {OURS: lambda: value(mine), "peer": lambda: value(peer)}
        return Problem({"forward": calls}, {"forward": lambda: None}, lambda: value(0.0), lambda: {"y": TRUTH})

    return Case({"op": "test", "case": "dense", "cell": name, "shape": "100", "dtype": "float32"}, build, None, kinked)


@pytest.mark.parametrize(
    ("errors", "named"), [({"ours": 1e-5}, "a .*rnnkern, forward: y"), ({"peer": 0.1}, "a .*peer, forward: y")]
)
def test_no_speed_for_a_wrong_result(errors, named, tmp_path):
    path = tmp_path / "test.csv"
    with pytest.raises(WrongResult, match=named) as raised:
        harness.run([case(**errors), case("good")], path, CPU, "test", EFFORT)
    assert "good" not in str(raised.value)
    assert {row["cell"] for row in record.read(path)} == {"good"}


@pytest.mark.parametrize(
    ("kinked", "wrong_seeds", "refused"),
    [(True, [0], False), (False, [0], True), (True, [0, 1], True), (True, [0, 3], True)],
)
def test_only_a_kink_excuses_one_wrong_draw(kinked, wrong_seeds, refused):
    drawn = case(ours=1.0, wrong_seeds=wrong_seeds, kinked=kinked)
    with pytest.raises(WrongResult) if refused else contextlib.nullcontext():
        assert harness.measure(drawn, CPU, EFFORT)


def test_rows_say_what_was_measured(tmp_path):
    path = tmp_path / "test.csv"
    ours, peer = harness.run([case()], path, CPU, "python -m test", EFFORT)
    assert (ours["provider"], peer["provider"]) == (OURS, "peer")
    assert ours["ratio_50"] == 1.0
    assert ours["rounds"] == 3
    assert ours["command"] == "python -m test"
    assert ours["peak_bytes"] >= 400
    assert list(record.read(path)[0]) == list(ours)


def test_a_ratio_is_steady():
    assert not harness.steady([2.0] * 14)
    assert harness.steady([2.0] * 10 + [9.0] * 3 + [0.1] * 2)  # only the quartiles count
    assert not harness.steady([2.0] * 10 + [2.3] * 5)
    assert not harness.steady([2.0] * 10 + [1.7] * 5)


@pytest.mark.parametrize("settles", [True, False])
def test_measuring_goes_on_until_ratios_are_steady_or_gives_up(settles, monkeypatch):
    """The peer alternately takes 1 and 3 seconds, and 2 seconds after its tenth turn if it ever settles."""
    turns = itertools.count()

    def seconds(call, device, repeats=1):
        turn = next(turns) if call() == "peer" else 10
        return 2.0 if settles and turn >= 10 else 1.0 + 2 * (turn % 2)

    monkeypatch.setattr(harness, "seconds", seconds)
    monkeypatch.setattr(harness, "peak_bytes", lambda *_: 0)
    calls = {"forward": {name: lambda name=name: name for name in (OURS, "peer")}}
    problem = Problem(calls, {"forward": lambda: ""}, dict, dict)
    ours, peer = harness.timed(case(), problem, CPU, Effort(60.0, 15, 40))
    assert ours["steady"]
    assert peer["steady"] == settles
    assert 15 < peer["rounds"] < 40 if settles else peer["rounds"] == 40


def test_cases_without_time_are_named(tmp_path, capsys):
    outcome = harness.attempt([case("a"), case("b")], tmp_path / "a.csv", CPU, "test", EFFORT, time.monotonic() - 1)
    assert not outcome.rows
    with pytest.raises(NoKernel):
        outcome.settle()
    assert "left out, the time was up: test dense a 100 float32; test dense b 100 float32" in capsys.readouterr().out


@pytest.mark.parametrize("lost", [False, True])
def test_a_failed_call_on_a_gpu_ends_the_run_only_with_the_device(lost, monkeypatch):
    def synchronize(device):
        if lost:
            raise RuntimeError("the device is lost")

    def fail(seed):
        raise RuntimeError("no such launch")

    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(record, "facts", lambda *arguments: {})
    monkeypatch.setattr(harness, "timed", lambda *arguments: [{"cell": "good"}])
    todo = [case("bad")._replace(build=fail), case("good")]
    if lost:
        with pytest.raises(RuntimeError, match="the device is lost"):
            harness.attempt(todo, None, gpu, "test", EFFORT)
    else:
        outcome = harness.attempt(todo, None, gpu, "test", EFFORT)
        assert outcome.refused == ["test dense bad 100 float32: RuntimeError: no such launch"]
        assert outcome.rows == [{"cell": "good"}]
