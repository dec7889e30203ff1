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
def test_no_speed_for_a_wrong_result(errors, named, tmp_path, capsys):
    path = tmp_path / "test.csv"
    with pytest.raises(WrongResult, match=named):
        harness.run([case(**errors)], path, CPU, "test", EFFORT)
    assert not path.exists()
    assert capsys.readouterr().out == ""


def test_right_cases_are_kept_beside_a_wrong_one(tmp_path):
    path = tmp_path / "test.csv"
    with pytest.raises(WrongResult) as raised:
        harness.run([case("bad", ours=1.0), case("good")], path, CPU, "test", EFFORT)
    assert "bad" in str(raised.value)
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


@pytest.mark.parametrize(("factors", "refused"), [({}, True), ({"other": 8.0}, True), ({"y": 8.0}, False)])
def test_a_problem_may_allow_one_result_a_larger_error(factors, refused):
    drawn = case(ours=4e-6)  # 17 roundings of the largest element; 4 * 3 are allowed
    drawn = drawn._replace(build=lambda seed, build=drawn.build: build(seed)._replace(factors=factors))
    with pytest.raises(WrongResult) if refused else contextlib.nullcontext():
        assert harness.measure(drawn, CPU, EFFORT)


def test_a_peer_may_round_as_it_likes():
    assert harness.measure(case(peer=1e-5), CPU, EFFORT)


def test_rows_say_what_was_measured(tmp_path):
    path = tmp_path / "test.csv"
    ours, peer = harness.run([case()], path, CPU, "python -m test", EFFORT)
    assert (ours["provider"], peer["provider"]) == (OURS, "peer")
    assert ours["ratio_50"] == 1.0
    assert ours["rounds"] == 3
    assert ours["command"] == "python -m test"
    assert ours["peak_bytes"] >= 400
    assert list(record.read(path)[0]) == list(ours)


def test_calls_take_turns_whose_first_call_is_dropped(monkeypatch):
    order, now = [], itertools.count()
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    monkeypatch.setattr(time, "perf_counter", lambda: order.append("|") or float(next(now)))
    times = harness.interleave(calls, CPU, Effort(0.0, 3, 3, block=0.0))
    warm, turns = order[:8], "".join(order[8:])
    assert "".join(warm) == "a|a|b|b|"
    assert turns == "a|a|b|b|" + "b|b|a|a|" + "a|a|b|b|"
    assert times == {"a": [1.0] * 3, "b": [1.0] * 3}


@pytest.mark.parametrize(
    ("found", "steady"),
    [
        ([2.0] * 14, False),
        ([2.0] * 15, True),
        ([2.0] * 10 + [9.0] * 3 + [0.1] * 2, True),  # only the quartiles count
        ([2.0] * 10 + [2.3] * 5, False),
        ([2.0] * 10 + [1.7] * 5, False),
    ],
)
def test_a_ratio_is_steady(found, steady):
    assert harness.steady(found) == steady


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


def test_rounds_fill_the_time():
    calls = {"a": lambda: None}
    assert len(harness.interleave(calls, CPU, Effort(60.0, 3, 11))["a"]) == 11


def test_a_turn_is_the_median_of_the_calls_that_fill_it(monkeypatch):
    now, taken = 0.0, itertools.cycle([1.0, 1.0, 9.0, 2.0, 2.0, 2.0])  # two warm-up calls, then one not timed

    def call():
        nonlocal now
        now += next(taken)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    (times,) = harness.interleave({"a": call}, CPU, Effort(0.0, 1, 1, block=3.0)).values()
    assert times == [2.0]


def test_other_work_of_the_same_size_is_timed_and_not_compared():
    right = case()
    other = right._replace(
        build=lambda seed: right.build(seed)._replace(unlike={"forward": {"other": lambda: {"z": TRUTH}}})
    )
    assert [row["provider"] for row in harness.measure(other, CPU, EFFORT)] == [OURS, "peer", "other"]


def test_the_baseline_is_at_least_what_memory_moves():
    right = case()
    slow = right._replace(build=lambda seed: right.build(seed)._replace(moving={"forward": 3.0}))
    assert {row["baseline_ms"] for row in harness.measure(slow, CPU, EFFORT)} == {3000.0}


def test_a_provider_has_its_own_columns():
    right = case()
    more = right._replace(build=lambda seed: right.build(seed)._replace(columns=lambda name: {"kernel": name[:3]}))
    assert [row["kernel"] for row in harness.measure(more, CPU, EFFORT)] == ["rnn", "pee"]


def test_values_are_compared_as_they_are_viewed():
    right = case()

    def build(seed: int) -> Problem:
        problem = right.build(seed)
        problem.calls["forward"]["peer"] = lambda: {"y": TRUTH.float().view(2, 50)}
        return problem._replace(views={"peer": lambda values: {name: y.flatten() for name, y in values.items()}})

    assert harness.measure(right._replace(build=build), CPU, EFFORT)


def test_what_proves_a_case_may_be_another_problem():
    wrong, right = case(ours=1.0), case()
    assert harness.measure(wrong._replace(proof=right.build), CPU, EFFORT)
    with pytest.raises(WrongResult):
        harness.measure(right._replace(proof=wrong.build), CPU, EFFORT)


def test_elements_are_drawn_evenly():
    drawn = harness.thinned(torch.arange(harness.JUDGED * 6).view(6, -1))
    assert drawn.unique(return_counts=True)[1].max() == 1
    assert (drawn[1] - drawn[0]) % 2 == 1
    assert harness.JUDGED / 2 < len(drawn) <= harness.JUDGED
    assert len(harness.thinned(TRUTH)) == len(TRUTH)


def test_a_peer_of_another_shape_is_wrong():
    with pytest.raises(AssertionError, match="y: shape"):
        harness.assert_same(TRUTH[:1], TRUTH, TRUTH, "y")


def test_cases_without_time_are_named(tmp_path, capsys):
    outcome = harness.attempt([case("a"), case("b")], tmp_path / "a.csv", CPU, "test", EFFORT, time.monotonic() - 1)
    assert not outcome.rows
    with pytest.raises(NoKernel):
        outcome.settle()
    assert "left out, the time was up: test dense a 100 float32; test dense b 100 float32" in capsys.readouterr().out


def test_a_case_is_timed_when_it_is_its_turn(tmp_path):
    order = []
    turns = case()
    watched = turns._replace(build=lambda seed: order.append("built") or turns.build(seed))
    harness.attempt([watched], tmp_path / "a.csv", CPU, "test", EFFORT, turn=lambda: order.append("turn"))
    assert order == ["built", "turn"]


@pytest.mark.parametrize("lost", [False, True])
def test_a_failed_call_on_a_gpu_ends_the_run_only_with_the_device(lost, monkeypatch, tmp_path):
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
    with pytest.raises(RuntimeError, match="no such launch"):
        harness.attempt(todo, None, CPU, "test", EFFORT)


def test_a_copy_moves_bytes():
    assert 1e8 < harness.copy_rate(CPU) < 1e13


def test_quantiles():
    assert harness.quantiles("ms", [float(k) for k in range(11)]) == {"ms_25": 2.5, "ms_50": 5.0, "ms_75": 7.5}
