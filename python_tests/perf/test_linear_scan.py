import itertools

import pytest
import torch

from perf import harness, linear_scan, moment_filter, record
from rnnkern import _extension
from rnnkern.ops import use

pytestmark = pytest.mark.skipif(not _extension.available, reason="the compiled part is missing: nothing to measure")

CPU = torch.device("cpu")
RUN = ["--shapes", "12x2x16", "--seconds", "0", "--threads", "1", "--device", "cpu"]


def test_all_are_measured_in_both_directions(tmp_path):
    linear_scan.main([*RUN, "--out", str(tmp_path)])
    found = {(row["case"], row["direction"], row["provider"]) for row in record.read(tmp_path / "linear_scan.csv")}
    assert found == {
        (f"{kind} factors", direction, name)
        for kind in linear_scan.KINDS
        for direction in ("forward", "forward+backward")
        for name in ("rnnkern", "loop", "prefix sums")
    }


def test_what_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(linear_scan, "prefix_sums", lambda *tensors: 1.01 * linear_scan.ours(*tensors))
    cases = linear_scan.cases(linear_scan.QUICK_SHAPES, "float32", CPU)[:1]
    outcome = harness.attempt(cases, None, CPU, "", harness.Effort(0.0, 1, 1))
    assert outcome.rows == []
    assert "prefix sums, forward: h" in outcome.refused[0]


def test_the_reference_is_not_timed():
    with use("reference"):
        cases = linear_scan.cases(linear_scan.QUICK_SHAPES, "float32", CPU)
        outcome = harness.attempt(cases, None, CPU, "", harness.Effort(0.0, 1, 1))
    assert "no kernel to measure" in outcome.left_out[0][1]


def test_the_floor_copies_what_must_cross_memory():
    """Of constant factors x is read and h written; with the backward dh and h read and dx written too."""
    x = torch.ones(4, 2, 3)
    for copies, rows in ((1.0, 4), (2.5, 10)):
        job = linear_scan.floor(x, copies)
        (pairs,) = [cell.cell_contents for cell in job.__closure__]
        assert sum(len(target) for target, _ in pairs) == rows
        job()
        assert all(torch.equal(target, source) for target, source in pairs)


def test_filters_are_measured_in_both_directions(tmp_path):
    moment_filter.main([*RUN, "--out", str(tmp_path)])
    found = {(row["case"], row["direction"], row["provider"]) for row in record.read(tmp_path / "moment_filter.csv")}
    assert found == set(
        itertools.product(moment_filter.RULES, ("forward", "forward+backward"), ("rnnkern", *moment_filter.PEERS))
    )


def test_a_wrong_filter_is_not_timed(monkeypatch):
    monkeypatch.setattr(moment_filter, "two_scans", lambda u, **rule: 1.01 * u)
    cases = moment_filter.cases(linear_scan.QUICK_SHAPES, "float32", CPU)[:1]
    outcome = harness.attempt(cases, None, CPU, "", harness.Effort(0.0, 1, 1))
    assert outcome.rows == []
    assert "two scans, forward: y" in outcome.refused[0]
