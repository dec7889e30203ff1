"""Neither threads nor the other samples of a batch change a bit, over the table of operators."""

import pytest
import torch
from torch.utils._pytree import tree_map_only

from python_tests.samples.operators import C64, F32, F64, cases, draw, outputs, results
from rnnkern import ops

ALIGNED = ((1700, 1, 80), (100, 3, 1024), (100, 70, 30))
"""Few channels for each of five threads and many for one; then many for all."""
FOR_THREADS = [
    *(("linear_scan", sizes, {"option": option, "dtype": dtype}) for sizes in (*ALIGNED, (800, 1, 200))
      for option in ("constant", "per step", "reset", "packed-reset-reverse") for dtype in (F32, C64)),
    *(("moment_filter", sizes, {"option": option, "dtype": F32}) for sizes in ALIGNED
      for option in ("adam", "momentum", "packed-reset-reverse")),
    *(("givens_recurrence", (13, 70, 40, 7), {"option": option, "dtype": dtype})
      for dtype, option in ((F32, "plain"), (F64, "packed-reset-reverse"), (C64, "reset"))),
    ("givens_product", (33, 20, 300), {"dtype": F32}),
    ("givens_product", (64, 6, 40, (5,)), {"dtype": F32, "style": "butterfly"}),
    *(("gather_attention", (batch, 90, 40, 12, 70), {"dtype": F32}) for batch in (1, 3, 7)),
    *(("similarity", (67, 9, 130), {"dtype": F32, "two": two, "values": 3}) for two in (False, True)),
    *(("skew_exp", sizes, {"dtype": F32}) for sizes in ((300,), (70, (5,)), (200, (3,)))),
    *(("schur_weight", sizes, {"dtype": F32}) for sizes in ((200,), (60, (5,)))),
    *((name, (9, 29, 21), {"dtype": F32, "option": option}) for name, option in cases(["relevancy_recurrence"])
      if option.startswith(("modrelu", "lstm"))),
    *(("sab_recurrence", (40, 11, 64, width), {"dtype": F32, "attend_every": 2, "resets": True})
      for width in (None, 40)),
]  # fmt: skip
BY_PYTORCH = {"sab_recurrence": {f"grad of {name}" for name in ("R", "W", "w", "bias")}}
"""Sums by PyTorch's products, which add up in an order that depends on threads."""


@pytest.mark.parametrize(("name", "sizes", "options"), FOR_THREADS, ids=str)
def test_threads_do_not_change_a_bit(name, sizes, options, threads):
    call, found = draw(name, *sizes, **options), []
    for count in (1, 2, 3, 5):
        threads(count)
        found.append(results(getattr(ops, name), call))
    for what in found[0].keys() - BY_PYTORCH.get(name, set()):
        assert all(torch.equal(other[what], found[0][what]) for other in found[1:]), what


ALONE = {
    "gather_attention": (3, 30, 12, 8, 40),
    "similarity": (3, 9, 130),
    "givens_product": (33, 5, 6, (3,)),
    "skew_exp": (20, (3,)),
    "schur_weight": (20, (3,)),
}


@pytest.mark.parametrize("name", ALONE)
def test_each_sample_has_the_bits_that_it_has_alone(name):
    call = draw(name, *ALONE[name], dtype=F32)
    together = outputs(call)
    for k in range(3):
        alone = tree_map_only(torch.Tensor, lambda x, k=k: x[k : k + 1] if len(x) == 3 else x, call)
        assert all(torch.equal(y[k : k + 1], one) for y, one in zip(together, outputs(alone), strict=True))


@pytest.mark.parametrize("name", ["householder_product", "cayley", "project_orthogonal"])
def test_two_runs_give_the_same_bits(name):
    call = draw(name, 60, dtype=F32)
    first, second = (results(getattr(ops, name), call) for _ in range(2))
    assert all(torch.equal(first[what], second[what]) for what in first)
