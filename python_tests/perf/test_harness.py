import pytest
import torch

from perf import harness, record
from perf.harness import OURS, Case, Effort, Problem, WrongResult

CPU = torch.device("cpu")
EFFORT = Effort(0.0, 3, 3)
TRUTH = torch.linspace(1, 2, 100, dtype=torch.float64)


def case(name: str = "a", *, ours: float = 0.0, peer: float = 0.0, wrong_seeds=range(99)) -> Case:
    """A call and its peer, wrong by the given amounts in the last element."""

    def value(error: float):
        y = TRUTH.float()
        y[-1] += error
        return {"y": y}

    def build(seed: int) -> Problem:
        mine = ours if seed in wrong_seeds else 0.0
        calls = {OURS: lambda: value(mine), "peer": lambda: value(peer)}
        return Problem({"forward": calls}, {"forward": lambda: None}, lambda: value(0.0), lambda: {"y": TRUTH})

    return Case({"op": "test", "case": "dense", "cell": name, "shape": "100", "dtype": "float32"}, build)


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


def test_bad_luck_in_one_draw_is_no_mistake():
    assert harness.measure(case(ours=1.0, wrong_seeds=[0]), CPU, EFFORT)
    with pytest.raises(WrongResult):
        harness.measure(case(ours=1.0, wrong_seeds=range(harness.DRAWS)), CPU, EFFORT)


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


def test_calls_take_turns():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    times = harness.interleave(calls, CPU, EFFORT)
    assert "".join(order) == "abab" + "abbaab"
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 3, "b": 3}


def test_rounds_fill_the_time():
    calls = {"a": lambda: None}
    assert len(harness.interleave(calls, CPU, Effort(60.0, 3, 11))["a"]) == 11


def test_peak_bytes_counts_what_is_held_at_once():
    kilo = 250  # float32 values
    held = torch.ones(kilo)

    def call():
        a, b = torch.empty(10 * kilo), torch.empty(5 * kilo)
        del a
        c = torch.empty(7 * kilo)
        return b.clone(), c, held

    assert harness.peak_bytes(call, CPU) == 17_000  # b, its copy and c; more than a and b


def test_quantiles():
    assert harness.quantiles("ms", [float(k) for k in range(11)]) == {"ms_20": 2.0, "ms_50": 5.0, "ms_80": 8.0}


def test_summary_is_the_geometric_mean_over_shapes():
    shared = {"case": "dense", "cell": "a", "direction": "forward"}
    rows = [shared | {"provider": "peer", "ratio_50": ratio} for ratio in (1.0, 4.0)]
    (line,) = harness.summary([*rows, shared | {"provider": OURS, "ratio_50": 1.0}])
    assert (line["geometric mean"], line["least"], line["shapes"]) == (2.0, 1.0, 2)
