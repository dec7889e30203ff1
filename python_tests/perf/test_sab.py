import pytest
import torch

from perf import harness, record, sab
from rnnkern import _extension
from rnnkern.ops import use

pytestmark = pytest.mark.skipif(not _extension.available, reason="the compiled part is missing: nothing to measure")

SHAPE = (12, 3, 8, 3, 2)


@pytest.mark.parametrize("alignment", sab.ALIGNMENTS)
def test_the_peer_is_the_reference(alignment):
    problem = sab.problem_of(alignment, SHAPE, torch.float64, 0)
    found, truth = problem.calls["forward+backward"]["PyTorch"](), problem.naive()
    for name, value in truth.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(sab, "PROOF", (8, 2))


def test_both_are_measured_in_both_directions(tmp_path):
    sab.main(["--shapes", "12x3x8x3x2", "--seconds", "0", "--threads", "1", "--out", str(tmp_path)])
    rows = record.read(tmp_path / "sab.csv")
    found = {(row["cell"], row["direction"], row["provider"]) for row in rows}
    assert found == {(alignment, direction, provider) for alignment in sab.ALIGNMENTS
                     for direction in ("forward", "forward+backward")
                     for provider in ("rnnkern", "PyTorch")}  # fmt: skip


def test_what_is_wrong_is_not_timed(monkeypatch):
    right = sab.plain
    monkeypatch.setattr(sab, "plain", lambda *args, **options: 1.01 * right(*args, **options))
    outcome = harness.attempt(sab.cases([SHAPE], "float32"), None, sab.CPU, "", harness.Effort(0.0, 1, 1))
    assert outcome.rows == []
    assert "PyTorch, forward: out" in outcome.refused[0]


def test_the_reference_is_not_timed():
    with use("reference"):
        outcome = harness.attempt(sab.cases([SHAPE], "float32"), None, sab.CPU, "", harness.Effort(0.0, 1, 1))
    assert "no kernel to measure" in outcome.left_out[0][1]
