"""The table of GPU measurements that launch plans read."""

import pytest
import torch

from perf import gpu_plan, record
from perf.recurrence_gpu import Spec
from python_tests.gpu import recurrences
from rnnkern import _extension

SAID = "the cuda kernel serves this call: {}, for R of it stays somewhere"


def measured(spec, provider, kernel, forward, both):
    for direction, ms in (("forward", forward), ("forward+backward", both)):
        said = SAID.format(kernel) if kernel else ""
        yield spec.labels | {"direction": direction, "provider": provider, "kernel": said, "ms_50": ms, "ratio_50": 1}


@pytest.fixture
def results(tmp_path):
    lstm, modrelu = Spec("lstm", 16, 1, 768), Spec("modrelu", 1, 1, 1024, "float32")
    heads, short = Spec("lstm", 16, 12, 64), Spec("lstm", 16, 1, 512, kind="short")
    rows = [
        *measured(lstm, "rnnkern", "cluster", 2.0, 5.0),
        *measured(lstm, "rnnkern, grid", "grid", 2.5, 4.0),
        *measured(lstm, "torch.nn", "", 2.0, 6.0),
        *measured(lstm, "torch.nn float16", "", 1.0, 1.0),
        *measured(modrelu, "rnnkern", "grid", 1.0, 2.0),
        *measured(heads, "rnnkern", "block", 1.0, 2.0),
        *measured(short, "rnnkern", "cluster", 1.0, 2.0),
    ]
    record.append(tmp_path / "recurrence.csv", rows)
    return tmp_path


ROWS = ["9 lstm bfloat16 768 16 grid 0.8 1.5", "9 modrelu float32 1024 1 grid 0.0 0.0"]


def test_rows_are_those_of_the_kernel_that_takes_least(results, tmp_path):
    """Compares times with the backward pass, for dense layers with one direction."""
    table = tmp_path / "table.h"
    table.write_text('// before\n"9 gru bfloat16 256 1 grid 1 1\\n"\n"10 gru bfloat16 256 1 grid 1 1\\n"\n')
    for _ in range(2):
        gpu_plan.main([str(results), "--capability", "9", "--table", str(table)])
        first, *lines = table.read_text().splitlines()
        assert first.startswith("// Written by `python -m perf.gpu_plan`")
        assert lines == [f'"{row}\\n"' for row in ("10 gru bfloat16 256 1 grid 1 1", *ROWS)]


def test_a_folder_without_dense_layers_is_refused(tmp_path):
    record.append(tmp_path / "recurrence.csv", list(measured(Spec("lstm", 16, 12, 64), "rnnkern", "block", 1.0, 2.0)))
    with pytest.raises(SystemExit, match="no dense layer was measured"):
        gpu_plan.main([str(tmp_path), "--capability", "9", "--table", str(tmp_path / "table.h")])


@pytest.mark.skipif(not _extension.available, reason="the compiled part is missing: it has the plan")
def test_the_plan_reads_the_rows(results, tmp_path):
    (tmp_path / "table.h").write_text("")
    gpu_plan.main([str(results), "--capability", "9", "--table", str(tmp_path / "table.h")])
    h200 = (9, 0, 132, 232448, 16, 7)
    found = recurrences.plan("lstm", torch.bfloat16, (1024, 16, 768, 1), h200, measured="\n".join([*ROWS, ""]))
    assert found["kernel"] == "grid"
