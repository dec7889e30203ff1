import re

import pytest
import torch

import perf.bench
from perf import harness, providers, record, recurrence
from perf.harness import Effort, WrongResult
from rnnkern import reference
from rnnkern.ops import use
from rnnkern.ops.recurrence import KERNEL_CELLS
from rnnkern.testing import recurrence_sample

pytestmark = pytest.mark.skipif(not KERNEL_CELLS, reason="the compiled part is missing: there is no kernel to measure")


CPU = torch.device("cpu")
RUN = ["--shapes", "3x5x8", "--seconds", "0", "--threads", "1"]


@pytest.mark.parametrize("packed", [False, True])
def test_every_cell_is_measured(packed, tmp_path):
    options = ["--packed"] if packed else []
    recurrence.main([*RUN, "--loop", *options, "--out", str(tmp_path)])
    rows = record.read(tmp_path / "recurrence.csv")
    assert {row["cell"] for row in rows} == set(KERNEL_CELLS)
    assert {row["direction"] for row in rows} == {"forward", "forward+backward"}
    assert {row["case"] for row in rows} == {"packed" if packed else "dense"}
    for cell, facts in KERNEL_CELLS.items():
        wanted = {"rnnkern", "loop", "torch.nn"} if cell in recurrence.MODULES else {"rnnkern", "loop"}
        found = {direction: set() for direction in ("forward", "forward+backward")}
        for row in rows:
            if row["cell"] == cell:
                found[row["direction"]].add(row["provider"])
        assert found["forward"] == wanted
        assert found["forward+backward"] == wanted | ({recurrence.RECOMPUTED} if facts["saved"] else set())
    assert (tmp_path / f"recurrence-{'packed' if packed else 'dense'}.png").stat().st_size > 10_000


def test_a_quick_look_keeps_nothing(tmp_path, capsys):
    recurrence.main(["--quick", "--threads", "1", "--cells", "lstm", "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
    assert "torch.nn" in capsys.readouterr().out


def test_bench_runs_every_case(monkeypatch, capsys):
    monkeypatch.setattr(recurrence, "CELLS", ("modrelu", "gru"))
    monkeypatch.setattr(recurrence, "compiled", lambda provider: provider)
    perf.bench.main(["--quick", "--threads", "1"])
    cases = set(re.findall(r"^(\S+(?: \S+)*)  ", capsys.readouterr().out, re.M))
    wanted = {"dense", "packed", "dense, 2 layers", "dense, 2 directions", "one call", "step by step", "norm 1"}
    wanted |= {"angles", "step", "nu 4, rho 4", "lists of a recurrence", "reflections", "tunable", "butterfly"}
    wanted |= {"constant factors", "per step factors", "momentum", "adam", "k 3, every 2"}
    assert cases == wanted | {"case"}


@pytest.mark.parametrize(
    ("options", "label"),
    [
        (["--layers", "2"], "dense, 2 layers"),
        (["--bidirectional"], "dense, 2 directions"),
        (["--layers", "2", "--bidirectional", "--packed"], "packed, 2 layers, 2 directions"),
    ],
)
def test_stacks_are_measured_against_those_of_torch_nn(options, label, tmp_path):
    recurrence.main([*RUN, *options, "--out", str(tmp_path)])
    rows = record.read(tmp_path / "recurrence.csv")
    assert {row["case"] for row in rows} == {label}
    assert {row["cell"] for row in rows} == set(recurrence.MODULES)
    assert {row["provider"] for row in rows} == {"rnnkern", "torch.nn"}
    assert (tmp_path / f"recurrence-{label.replace(',', '').replace(' ', '-')}.png").stat().st_size > 10_000


def test_noise_is_measured_against_a_loop_that_draws_the_same(tmp_path, capsys):
    noise = ["--zoneout", "0.1", "--dropout", "0.25"]
    sizes = [*RUN, "--cells", "lstm", "gru_reset_before"]
    recurrence.main([*sizes, "--packed", *noise, "--out", str(tmp_path)])
    rows = record.read(tmp_path / "recurrence.csv")
    assert {row["case"] for row in rows} == {"packed, zoneout 0.1, dropout 0.25"}
    assert {row["provider"] for row in rows} == {"rnnkern", "rnnkern, gates recomputed", "loop"}
    with pytest.raises(SystemExit):
        recurrence.main([*sizes, "--layers", "2", *noise])
    assert "in one layer" in capsys.readouterr().err


def test_stacks_are_of_the_cells_that_torch_nn_has(capsys):
    with pytest.raises(SystemExit):
        recurrence.main(["--quick", "--layers", "2", "--cells", "modrelu"])
    assert "--cells must name some of" in capsys.readouterr().err


def only(cell: str, **options) -> harness.Case:
    (case,) = recurrence.cases([cell], [(3, 2, 4)], "float32", **{"packed": False, "with_loop": False} | options)
    return case


@pytest.mark.parametrize("options", [{"layers": 2}, {"directions": 2}])
def test_a_stack_that_computes_something_else_is_refused(options, monkeypatch):
    right = only("gru", **options)
    assert harness.measure(right, CPU, Effort(0.0, 3, 3))
    forward = torch.nn.GRU.forward

    def wrong(self, x, hx=None):  # in float32 alone: the truth is torch.nn's too
        h, final = forward(self, x, hx)
        return (h * 1.01, final) if x.dtype == torch.float32 and torch.backends.mkldnn.enabled else (h, final)

    monkeypatch.setattr(torch.nn.GRU, "forward", wrong)
    with pytest.raises(WrongResult, match=r"torch\.nn, forward: h"):
        harness.measure(right, CPU, Effort(0.0, 3, 3))


def test_the_truth_of_a_stack_is_computed_without_onednn():
    problem = only("lstm", layers=2).build(0)
    with torch.profiler.profile() as profile:
        problem.naive()
        problem.truth()
    assert not [event.key for event in profile.key_averages() if "mkldnn" in event.key]
    assert torch.backends.mkldnn.enabled


def test_wrong_recomputed_gates_are_refused(monkeypatch):
    def wrong(layer, x, save_gates=None):
        h, final = providers.operator(layer, x, save_gates)
        return (h if save_gates is None else h * (1 + 1e-4)), final  # less than a peer may round

    monkeypatch.setattr(recurrence, "operator", wrong)
    with pytest.raises(WrongResult, match=r"rnnkern, gates recomputed, forward\+backward: h"):
        harness.measure(only("lstm"), CPU, Effort(0.0, 3, 3))


def test_the_compiled_loop_is_a_peer():
    case = only("tanh", with_compiled=True)
    problem = harness.checked(case)
    assert {recurrence.COMPILED in calls for calls in problem.calls.values()} == {True}
    assert not problem.absent


def test_a_loop_that_cannot_be_compiled_is_named(monkeypatch, capsys):
    def fail(provider):
        raise OSError("no compiler\nand more")

    monkeypatch.setattr(recurrence, "compiled", fail)
    recurrence.main(["--quick", "--threads", "1", "--cells", "modrelu", "--compiled"])
    said = "left out, torch.compile failed with OSError: no compiler: recurrence dense modrelu 8x4x16 float32, compiled"
    assert said in capsys.readouterr().out


def test_a_long_loop_is_not_compiled(monkeypatch):
    monkeypatch.setattr(recurrence, "COMPILED_STEPS", 2)
    problem = only("modrelu", with_compiled=True).build(0)
    assert recurrence.COMPILED not in problem.calls["forward"]


def test_without_a_kernel_there_is_nothing_to_measure():
    with use("reference"), pytest.raises(ValueError, match=r"no kernel to measure: forced by use\('reference'\)"):
        recurrence.main(["--quick", "--cells", "tanh"])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_the_loop_is_the_reference(cell, packed):
    torch.manual_seed(0)
    sample = recurrence_sample(cell, steps=6, batch=5, hidden=3, packed=packed)
    _, u, R, state = sample.args
    bias, params, batch_sizes = (sample.kwargs[name] for name in ("bias", "params", "batch_sizes"))
    weights = {"weight_ih": torch.eye(u.shape[-1]).to(u), "weight_hh": R, "bias_ih": torch.zeros_like(bias)}
    layer = providers.Layer(cell, 5, batch_sizes, weights | {"bias_hh": bias}, params)
    h, final = providers.loop(layer, u)
    zeros = [torch.zeros_like(s) for s in state]
    wanted = reference.recurrence(cell, u, R, zeros, bias=bias, params=params, batch_sizes=batch_sizes)
    torch.testing.assert_close((h, final), wanted)


@pytest.mark.parametrize("text", ["3x4", "3x4x5x6", "axbxc"])
def test_a_wrong_shape_is_refused(text):
    with pytest.raises(SystemExit):
        recurrence.main(["--shapes", text])
