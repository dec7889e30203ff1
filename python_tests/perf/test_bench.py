"""`make bench`: which cases it has, and that each of their providers computes the same."""

import pytest
import torch

from perf import bench, ensemble, harness, neural_ode, record, recurrence
from perf.harness import Effort
from rnnkern import _gemm as gemm
from rnnkern import use
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS

compiled_part = pytest.mark.skipif(not KERNEL_CELLS, reason="no compiled part: there is no kernel to measure")

CPU, EFFORT = torch.device("cpu"), Effort(0.0, 3, 3)


def only(cell: str, **options) -> harness.Case:
    (case,) = bench.recurrences([cell], [(6, 4, 5)], **options)
    return case


def test_at_most_sixty_cases_each_once():
    todo = bench.cases()
    assert len({tuple(case.labels.values()) for case in todo}) == len(todo) <= 60


def test_what_was_not_steady_is_measured_again(monkeypatch, tmp_path, capsys):
    limits, todo = [], bench.cases()[-1:]
    monkeypatch.setattr(bench, "cases", lambda: todo)

    def attempt(cases, path, device, command, effort, deadline):
        limits.append(effort.seconds)
        row = todo[0].labels | {"direction": "forward", "provider": "a loop", "steady": False}
        return harness.Outcome([row], [], [])

    monkeypatch.setattr(harness, "attempt", attempt)
    monkeypatch.setattr(harness, "comparisons", lambda rows: rows)
    bench.main(["--seconds", "2", "--out", str(tmp_path)])
    assert limits == [2.0, 4.0]
    assert f"gave up, not steady in all of its rows: {' '.join(todo[0].labels.values())}" in capsys.readouterr().out


def test_changed_sources_are_not_published(monkeypatch, capsys):
    monkeypatch.setattr(record, "commit", lambda: "abc-dirty")
    with pytest.raises(SystemExit):
        bench.main(["--publish"])
    assert "--publish: commit first" in capsys.readouterr().err


@compiled_part
@pytest.mark.parametrize("cell", ["tanh", "gru", "lstm"])
def test_a_padded_layer_computes_what_the_packed_one_does(cell):
    case = only(cell, packed=True)
    rows = harness.measure(case, CPU, EFFORT)  # which raises if they differ
    assert [row["provider"] for row in rows] == 2 * ["rnnkern", "torch.nn", recurrence.PADDED]


OTHERS = [*ensemble.cases(ensemble.QUICK_SHAPES), *neural_ode.cases([(recurrence.COMPILED_STEPS + 2, 2, 4)])]


@compiled_part
@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.labels["cell"])
def test_providers_of_other_pages_agree(case):
    assert {len(calls) for calls in harness.checked(case).calls.values()} == {3}


def test_without_a_kernel_nothing_is_measured():
    with use("reference"), pytest.raises(harness.NoKernel, match=r"no kernel to measure: forced by use\('reference'\)"):
        only("tanh").build(0)


@pytest.mark.parametrize("rows", [1, 5, gemm.ROWS + 3])
@pytest.mark.parametrize("constant", [False, True])
def test_every_routine_of_the_gemm_reference_is_the_product(rows, constant):
    torch.manual_seed(0)
    a, b = torch.randn(rows, 6), torch.randn(6, 7)
    laid = gemm.lay_out(b, rows) if constant else b.t()
    mm, *others = gemm.ways(a, b, laid, torch.empty(rows, 7))
    (out,) = (job() for job in mm)
    torch.testing.assert_close(out, a @ b)
    for blocks, transposed in [others] if others else []:
        torch.testing.assert_close(torch.cat([job() for job in blocks]), a @ b)
        torch.testing.assert_close(transposed[0]().t(), a @ b)
