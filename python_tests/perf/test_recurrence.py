import pytest
import torch

import perf.bench
from perf import record, recurrence
from rnnkern import reference
from rnnkern.ops import use
from rnnkern.ops.recurrence import KERNEL_CELLS
from rnnkern.testing import recurrence_sample

pytestmark = pytest.mark.skipif(not KERNEL_CELLS, reason="the compiled part is missing: there is no kernel to measure")


@pytest.mark.parametrize("packed", [False, True])
def test_every_cell_is_measured(packed, tmp_path):
    options = ["--packed"] if packed else []
    recurrence.main(["--shapes", "3x5x8", "--seconds", "0", "--threads", "1", "--loop", *options], results=tmp_path)
    (path,) = tmp_path.glob("*/recurrence.csv")
    rows = record.read(path)
    assert {row["cell"] for row in rows} == set(KERNEL_CELLS)
    assert {row["direction"] for row in rows} == {"forward", "forward+backward"}
    assert {row["case"] for row in rows} == {"packed" if packed else "dense"}
    for cell in KERNEL_CELLS:
        wanted = {"rnnkern", "loop", "torch.nn"} if cell in recurrence.MODULES else {"rnnkern", "loop"}
        assert {row["provider"] for row in rows if row["cell"] == cell} == wanted
    assert path.with_name(f"recurrence-{'packed' if packed else 'dense'}.png").stat().st_size > 10_000


def test_a_quick_look_keeps_nothing(tmp_path, capsys):
    recurrence.main(["--quick", "--threads", "1", "--cells", "lstm"], results=tmp_path)
    assert not list(tmp_path.iterdir())
    assert "torch.nn" in capsys.readouterr().out


def test_bench_runs_every_case(capsys):
    perf.bench.main(["--quick", "--threads", "1", "--cells", "modrelu"])
    out = capsys.readouterr().out
    assert "dense" in out
    assert "packed" in out


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
    layer = recurrence.Layer(cell, 5, batch_sizes, weights | {"bias_hh": bias}, params)
    h, final = recurrence.loop(layer, u)
    zeros = [torch.zeros_like(s) for s in state]
    wanted = reference.recurrence(cell, u, R, zeros, bias=bias, params=params, batch_sizes=batch_sizes)
    torch.testing.assert_close((h, final), wanted)


def test_the_floor_makes_every_product():
    torch.manual_seed(0)
    layer = recurrence.draw_layer("lstm", 5, None, 8, torch.float32).map(torch.Tensor.detach)
    with torch.profiler.profile() as profile:
        recurrence.floors(torch.randn(7, 5, 8), layer, [5] * 7)["forward+backward"]()
    assert sum(event.count for event in profile.key_averages() if event.key == "aten::mm") == 2 * 7 + 4


@pytest.mark.parametrize("text", ["3x4", "3x4x5x6", "axbxc"])
def test_a_wrong_shape_is_refused(text):
    with pytest.raises(SystemExit):
        recurrence.main(["--shapes", text])
