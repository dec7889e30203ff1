import pytest
import torch

from perf import gather_attention, harness, record
from rnnkern import _extension
from rnnkern.ops import use

pytestmark = pytest.mark.skipif(not _extension.available, reason="the compiled part is missing: nothing to measure")

CPU = torch.device("cpu")


def test_both_are_measured_in_both_directions(tmp_path):
    options = ["--shapes", "2x12x6x16", "--seconds", "0", "--threads", "1", "--device", "cpu"]
    gather_attention.main([*options, "--out", str(tmp_path)])
    found = {(row["direction"], row["provider"]) for row in record.read(tmp_path / "gather_attention.csv")}
    assert found == {(direction, name) for direction in gather_attention.COPIES for name in ("rnnkern", "PyTorch")}


def test_lists_are_those_of_a_recurrence():
    idx = gather_attention.lists(2, 30, 7)
    assert idx.shape == (2, 30, 7)
    assert (idx <= torch.arange(30).view(-1, 1)).all()
    assert (idx[:, :, 0] == torch.arange(30)).all()
    assert (idx[:, 0, 1:] == -1).all()
    assert (idx[:, 10:] >= 0).all()
    assert (idx[:, 10:, 4:] <= torch.arange(10, 30).view(-1, 1) - 4).all()


def test_what_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(gather_attention, "plain", lambda *tensors: 1.01 * gather_attention.gather_attention(*tensors))
    cases = gather_attention.cases(gather_attention.QUICK_SHAPES, "float32", CPU)
    outcome = harness.attempt(cases, None, CPU, "", harness.Effort(0.0, 1, 1))
    assert outcome.rows == []
    assert "PyTorch, forward: out" in outcome.refused[0]


def test_the_reference_is_not_timed():
    with use("reference"):
        cases = gather_attention.cases(gather_attention.QUICK_SHAPES, "float32", CPU)
        outcome = harness.attempt(cases, None, CPU, "", harness.Effort(0.0, 1, 1))
    assert "no kernel to measure" in outcome.left_out[0][1]
