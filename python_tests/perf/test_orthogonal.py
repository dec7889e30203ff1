import importlib.util
import itertools
import time

import pytest
import torch

from perf import (
    givens_recurrence,
    harness,
    orthogonal,
    orthogonal_cost,
    orthogonal_factors,
    orthogonal_step,
    record,
)  # fmt: skip
from rnnkern import _extension
from rnnkern.ops import use

pytestmark = pytest.mark.skipif(not _extension.available, reason="the compiled part is missing: nothing to measure")

CPU = torch.device("cpu")


def test_every_shape_and_peer_is_measured(tmp_path):
    orthogonal.main(["--shapes", "9x9", "3x8x8", "--seconds", "0", "--threads", "1", "--out", str(tmp_path)])
    rows = record.read(tmp_path / "orthogonal.csv")
    peers = {"rnnkern", "torch.matrix_exp", "torch.nn.utils.parametrizations"}
    peers |= {"geotorch"} if importlib.util.find_spec("geotorch") else set()
    for op, providers in (("skew_exp", peers), ("schur_weight", {"rnnkern", orthogonal.FORMULA})):
        for shape, direction in itertools.product(("9x9", "3x8x8"), ("forward", "forward+backward")):
            wanted = {"op": op, "shape": shape, "direction": direction}
            assert {row["provider"] for row in rows if row | wanted == row} == providers


def test_the_floor_of_a_gpu_makes_every_product_once(monkeypatch):
    """With no product that PyTorch has for a CPU alone."""
    A = torch.randn(6, 6, device="meta")
    monkeypatch.setattr(orthogonal, "products", None)
    with torch.profiler.profile() as profile:
        orthogonal.floor(A, 3)()
    assert sum(event.count for event in profile.key_averages() if event.key == "aten::matmul") == 3


def test_what_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(orthogonal, "skew_exp", lambda A: 1.001 * orthogonal.matrix_exp(A))
    monkeypatch.setattr(orthogonal, "explain", lambda *_: type("Choice", (), {"implementation": "cpu"}))
    cases = orthogonal.cases([(9, 9)], 1.0, "float32", CPU, ["skew_exp"])
    outcome = harness.attempt(cases, None, CPU, "", harness.Effort(0.0, 1, 1))
    assert outcome.rows == []
    assert "rnnkern, forward: V" in outcome.refused[0]


def test_the_reference_is_not_timed():
    cases = orthogonal.cases([(9, 9)], 1.0, "float32", CPU)
    with use("reference"):
        outcome = harness.attempt(cases, None, CPU, "", harness.Effort(0.0, 1, 1))
    assert outcome.rows == []
    assert ["no kernel to measure" in why for _, why in outcome.left_out] == [True, True]


@pytest.mark.parametrize("size", [300, 512])
def test_a_call_holds_no_more_than_18_matrices(size):
    problem = orthogonal.problem_of((size, size), 1.0, torch.float32, CPU, 0)
    held = harness.peak_bytes(problem.calls["forward+backward"]["rnnkern"], CPU)
    assert held <= 18 * 4 * size**2


def test_a_step_of_an_optimiser(monkeypatch):
    (case,) = orthogonal_step.cases([(4, 3, 9)])
    outcome = harness.attempt([case], None, CPU, "", harness.Effort(0.0, 1, 1))
    assert {"rnnkern", "torch.nn.utils.parametrizations"} <= {row["provider"] for row in outcome.rows}
    right = orthogonal_step.by_torch

    def wrong(module):
        module.weight_ih_l0.data.mul_(1.01)
        right(module)

    monkeypatch.setattr(orthogonal_step, "by_torch", wrong)
    outcome = harness.attempt([case], None, CPU, "", harness.Effort(0.0, 1, 1))
    assert outcome.rows == []
    assert "torch.nn.utils.parametrizations, step of the optimiser: h" in outcome.refused[0]


def test_factors_are_measured_beside_their_peers(tmp_path, monkeypatch):
    shapes = {"householder_product": ((9, 4), (9, 9)), "givens_product": ((8, 3), (8, 5))}
    monkeypatch.setattr(orthogonal_factors, "SHAPES", shapes)
    orthogonal_factors.main(["--seconds", "0", "--threads", "1", "--out", str(tmp_path)])
    rows = record.read(tmp_path / "orthogonal_factors.csv")
    found = {(row["case"], row["shape"], row["direction"], row["provider"]) for row in rows}
    wanted = [
        (("reflections", "9x4"), orthogonal_factors.LAPACK),
        (("reflections", "9x9"), orthogonal_factors.LAPACK),
        (("butterfly", "8x3"), orthogonal_factors.FORMULA),
        (("tunable", "8x5"), orthogonal_factors.FORMULA),
    ]
    directions = ("forward", "forward+backward")
    assert found == {(*case, d, who) for case, peer in wanted for d in directions for who in ("rnnkern", peer)}


def test_wrong_factors_are_not_timed(monkeypatch):
    monkeypatch.setattr(orthogonal_factors, "ours", lambda V: 1.001 * orthogonal_factors.formula(V))
    cases = orthogonal_factors.cases({"householder_product": [(9, 4)]}, "float32")
    outcome = harness.attempt(cases, None, CPU, "", harness.Effort(0.0, 1, 1))
    assert outcome.rows == []
    assert "rnnkern, forward: V" in outcome.refused[0]


# ---- how the cost grows


def test_exponents_are_fitted_written_and_shown(tmp_path, monkeypatch):
    """Of times that are as the formula says, whatever is run."""
    tiny = [cost._replace(sizes=(64, 128) if cost.varied == "N" else (4, 8)) for cost in orthogonal_cost.COSTS]
    monkeypatch.setattr(orthogonal_cost, "COSTS", tiny)
    monkeypatch.setattr(orthogonal_cost, "STEPS", 3)
    times = iter(3.0 * cost.work(size) for cost in tiny for size in cost.sizes)

    def cpu_ms(call, seconds):
        call()
        return next(times)

    monkeypatch.setattr(orthogonal_cost, "cpu_ms", cpu_ms)
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    orthogonal_cost.main(["--out", str(tmp_path / "device")])
    rows = record.read(tmp_path / "device" / "orthogonal_cost.csv")
    assert len(rows) == 2 * len(tiny)
    assert all(float(row["exponent"]) == pytest.approx(float(row["of the formula"]), rel=1e-3) for row in rows)
    page = tmp_path / "page.md"
    page.write_text("<!-- growth:begin -->\n<!-- growth:end -->\n<!-- forms:begin -->\n<!-- forms:end -->\n")
    orthogonal_cost.main(["--page", "device"], page)
    text = page.read_text()
    assert "| reflections, formed | N^2 m | N = 512 | m = 4 to 8 | 12 | 24 | 1.00 | 1.00 |" in text
    assert "| T = 50, B = 100 | 128 |" in text


def test_the_time_is_that_of_a_call():
    def call():
        begun = time.process_time()
        while time.process_time() - begun < 4e-3:
            pass

    assert 4 <= orthogonal_cost.cpu_ms(call, 0.0) < 6


def test_wrong_products_are_not_timed(monkeypatch):
    rnn = orthogonal_cost.fourier(8)
    monkeypatch.setattr(orthogonal_cost, "fourier", lambda size: rnn)
    orthogonal_cost.network_applied(2, 8)
    rnn.forward = lambda x: (torch.ones(len(x), 2, 16), None)
    with pytest.raises(AssertionError, match="not close"):
        orthogonal_cost.network_applied(2, 8)


def test_the_layers_inside_are_measured_beside_their_matrix(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(givens_recurrence, "STEPS", 3)
    arguments = ["--seconds", "0", "--sizes", "8", "12", "--layers", "1", "2", "3", "--batch", "2"]
    givens_recurrence.main([*arguments, "--out", str(tmp_path)])
    rows = record.read(tmp_path / "givens_recurrence.csv")
    found = {(row["size"], row["layers"], row["provider"]) for row in rows}
    providers = ("rnnkern", givens_recurrence.MATRIX)
    assert found == set(itertools.product(("8", "12"), ("1", "2", "3"), providers))
    assert "what layers add is N^" in capsys.readouterr().out


def test_the_fits_find_what_they_are_given():
    grid = [(n, count) for n in (64, 256, 1024) for count in (1, 2, 8, 16)]
    sizes, layers = zip(*grid, strict=True)
    p, q = givens_recurrence.exponents(sizes, layers, [n + 1e-3 * n**1.5 * (count - 1) ** 2 for n, count in grid])
    assert (p, q) == pytest.approx((1.5, 2.0))
    assert givens_recurrence.line(layers, [3 + 0.5 * count for count in layers]) == pytest.approx((3, 0.5, 0), abs=1e-9)


def test_a_wrong_recurrence_is_not_timed(monkeypatch):
    monkeypatch.setattr(
        givens_recurrence, "by_matrix", lambda W, u, h0, modrelu_bias: (u * W[0] + h0 * modrelu_bias, h0)
    )
    with pytest.raises(harness.WrongResult, match="the matrix, forward"):
        givens_recurrence.main(["--quick"])
