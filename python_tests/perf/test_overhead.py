import time

import pytest
import torch

from perf import harness, overhead, record
from perf.harness import Effort, WrongResult
from rnnkern.ops.recurrence import KERNEL_CELLS

pytestmark = pytest.mark.skipif(not KERNEL_CELLS, reason="the compiled part is missing: there is no kernel to measure")

CPU, EFFORT = torch.device("cpu"), Effort(0.0, 3, 3)


def only(case: str, cell: str) -> harness.Case:
    found = overhead.cases([3], [4], "float32")
    return next(c for c in found if (c.labels["case"], c.labels["cell"]) == (case, cell))


def test_rows_are_kept(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(overhead, "CALL_SIZES", (1,))
    monkeypatch.setattr(overhead, "STEP_SIZES", (3,))
    overhead.main(["--seconds", "0", "--threads", "1", "--out", str(tmp_path)])
    rows = record.read(tmp_path / "overhead.csv")
    assert all(row["commit"] and row["device"] and row["torch"] for row in rows)
    assert {row["command"] for row in rows} == {f"python -m perf.overhead --seconds 0 --threads 1 --out {tmp_path}"}
    for cell, single in overhead.CELLS.items():
        found = {(row["case"], row["direction"], row["provider"]) for row in rows if row["cell"] == cell}
        for direction in ("forward", "forward+backward"):
            for provider in ("rnnkern", "rnnkern, operator", "torch.nn"):
                assert ("one call", direction, provider) in found
        for mode in ("inference_mode", "no_grad"):
            for provider in ("rnnkern", "torch.nn", f"torch.nn {single.__name__}"):
                assert ("step by step", mode, provider) in found
    assert "us  times faster" in capsys.readouterr().out


def test_a_quick_look_is_quick_and_keeps_nothing(tmp_path):
    begun = time.process_time()
    overhead.main(["--quick", "--threads", "1", "--out", str(tmp_path)])
    assert time.process_time() - begun < 60
    assert not list(tmp_path.iterdir())


def test_a_cell_that_computes_something_else_is_refused(monkeypatch):
    forward = torch.nn.GRUCell.forward
    monkeypatch.setattr(torch.nn.GRUCell, "forward", lambda self, x, h: forward(self, x, h) * 1.01)
    with pytest.raises(WrongResult, match=r"torch\.nn GRUCell, inference_mode: final state"):
        harness.measure(only("step by step", "gru"), CPU, EFFORT)


def test_a_module_that_drops_its_state_is_refused(monkeypatch):
    forward = torch.nn.LSTM.forward
    monkeypatch.setattr(torch.nn.LSTM, "forward", lambda self, x, hx=None: forward(self, x))
    with pytest.raises(WrongResult, match=r"torch\.nn, inference_mode: final state"):
        harness.measure(only("step by step", "lstm"), CPU, EFFORT)


def test_each_step_is_a_call_in_its_mode():
    problem = only("step by step", "tanh").build(0)
    seen = []
    for mode, calls in problem.calls.items():
        for call in calls.values():
            (final,) = call().values()
            seen.append((mode, final.is_inference(), final.requires_grad))
    assert seen == [("inference_mode", True, False)] * 3 + [("no_grad", False, False)] * 3
    with torch.profiler.profile() as profile:
        problem.calls["no_grad"]["rnnkern"]()
    (count,) = (event.count for event in profile.key_averages() if event.key == "rnnkern::recurrence")
    assert count == overhead.LENGTH


def test_times_are_of_one_call_or_one_step():
    row = {"shape": "100x1x64", "ms_50": "2.5"}
    assert overhead.microseconds(row | {"case": "step by step"}) == 25.0
    assert overhead.microseconds(row | {"case": "one call", "shape": "1x1x16"}) == 2500.0
