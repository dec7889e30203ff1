"""How the launch plan uses measurements: which of two kernels is preferred, and the remark if torch.nn was faster."""

import pytest
import torch

from python_tests.gpu.recurrences import plan
from rnnkern import _extension

if not _extension.available:
    pytest.skip(f"no compiled part: {_extension.reason}", allow_module_level=True)

H200 = (9, 0, 132, 232448, 16, 7)
MEASURED = """\
9 lstm bfloat16 512 16 cluster 1.5 1.25
9 lstm bfloat16 768 16 grid 1.5 1.25
9 lstm bfloat16 768 64 cluster 0.9 1.1
9 lstm bfloat16 1024 16 grid 1.5 0.75
9 modrelu float32 512 16 cluster 0 0
9 tanh float32 512 16 cluster 0.5 0.5
9 gru float32 64 16 block 0.5 0.75
"""


def measured(cell, dtype, batch, hidden, facts=H200, heads=1, **options):
    found = plan(cell, dtype, (10, batch, hidden, heads), facts, measured=MEASURED, **options)
    return found["kernel"], found["reason"]


SLOWER = (
    ", slower than torch.nn: measured at H = {} and B = {}, {} times its speed forward, {} with the backward".format
)


def test_the_grid_goes_before_a_cluster_where_it_measured_faster(monkeypatch):
    """A measurement applies up to its H and B."""
    faster = "R of {} units stays on {} blocks, which measured faster than a cluster of blocks".format
    assert measured("lstm", torch.bfloat16, 16, 768) == ("grid", faster(768, 48))
    assert measured("lstm", torch.bfloat16, 1, 513) == ("grid", faster(513, 33))
    assert plan("lstm", torch.bfloat16, (10, 16, 768, 1), H200)["kernel"] == "cluster"
    for cell, dtype, batch, hidden in (
        ("lstm", torch.bfloat16, 17, 768),
        ("lstm", torch.bfloat16, 16, 512),
        ("lstm", torch.float16, 1, 768),
        ("gru", torch.bfloat16, 1, 768),
    ):
        assert measured(cell, dtype, batch, hidden)[0] == "cluster"
    assert measured("lstm", torch.bfloat16, 16, 768, (10, *H200[1:]))[0] == "cluster"
    assert measured("lstm", torch.bfloat16, 16, 768, (9, 0, 47, *H200[3:]))[0] == "cluster"  # 47 < 48 blocks
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", "cluster")
    assert measured("lstm", torch.bfloat16, 16, 768)[0] == "cluster"


def test_the_reason_says_where_torch_measured_faster():
    kernel, said = measured("lstm", torch.bfloat16, 20, 768)
    assert (kernel, said) == ("cluster", "R of 768 units stays on a cluster of 16 blocks" + SLOWER(768, 64, 0.9, 1.1))
    kernel, said = measured("lstm", torch.bfloat16, 1, 1000)  # too large for a cluster
    assert (kernel, said) == ("grid", "R of 1000 units stays on 63 blocks" + SLOWER(1024, 16, 1.5, 0.75))
    assert measured("gru", torch.float32, 3, 60) == (
        "block", "heads of 60 units stay on one block" + SLOWER(64, 16, 0.5, 0.75))  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "dtype", "batch", "hidden", "options"),
    [("lstm", torch.bfloat16, 16, 512, {}),  # faster
     ("modrelu", torch.float32, 16, 512, {}),  # torch.nn lacks the cell
     ("gru", torch.float32, 17, 60, {}),  # not measured
     ("gru", torch.float32, 3, 60, {"heads": 2}),
     ("gru", torch.float32, 3, 60, {"noisy": True}),
     ("tanh", torch.float32, 3, 512, {"tf32": True})],
)  # fmt: skip
def test_the_reason_says_nothing_else_of_measurements(cell, dtype, batch, hidden, options):
    assert "measured" not in measured(cell, dtype, batch, hidden, **options)[1]


def test_a_row_that_is_none_is_refused():
    for row in ("9 lstm bfloat16 768 16 grid 1.5", "9 lxtm bfloat16 768 16 grid 1.5 1", "rows"):
        with pytest.raises(RuntimeError, match=f"a measured row must be .*, got '{row}'"):
            plan("lstm", torch.bfloat16, (10, 16, 768, 1), H200, measured=row)
