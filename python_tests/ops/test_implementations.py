"""explain names the implementation that runs, over the table of operators, and the fallback gives the same numbers.

Shapes need no kernel. The choice for the recurrence is in test_dispatch.py."""

import json

import pytest
import torch
from torch.utils._pytree import tree_map_only

import rnnkern
from python_tests.samples.operators import OPERATORS, draw, outputs, results
from rnnkern import ops
from rnnkern.ops import explain

BY_PYTORCH = ("cayley", "project_orthogonal", "householder_product")
"""Operators without kernels of their own."""
NAMES = [name for name in OPERATORS if name not in ("cayley", "project_orthogonal", "recurrence")]
TRITON = ("linear_scan", "moment_filter", "gather_attention", "similarity")


def entered(name):
    """How often a kernel of the operator was entered, forward or backward."""
    counts = json.loads(torch.ops.rnnkern.kernel_counts())
    return sum(n for kernel, n in counts.items() if kernel.startswith(f"{name}/cpu/"))


@pytest.mark.parametrize("name", NAMES)
def test_explain_says_what_is_entered(name):
    op, call = getattr(ops, name), draw(name)
    before, runs = entered(name), 0 if name in BY_PYTORCH else 2
    assert explain(op, **call.arguments()).implementation == "cpu"
    found = results(op, call)
    assert entered(name) == before + runs
    with rnnkern.use("reference"):
        assert explain(op, **call.arguments()).implementation == "reference"
        torch.testing.assert_close(results(op, call), found)
    assert entered(name) == before + runs
    meta = tree_map_only(torch.Tensor, lambda x: x.to("meta"), call)
    choice = explain(op, **meta.arguments())
    assert choice.implementation == "reference"
    assert "on meta" in choice.reason


@pytest.mark.parametrize("name", NAMES)
def test_triton_is_refused_on_a_cpu(name):
    reason = "cannot serve this call: the tensors are on cpu" if name in TRITON else "cannot serve this call"
    with rnnkern.use("triton"), pytest.raises(ValueError, match=reason):
        outputs(draw(name))


@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - {"relevancy_recurrence"}))
def test_shapes_on_the_meta_device(name):
    call = draw(name)
    meta = tree_map_only(torch.Tensor, lambda x: x.to("meta"), call)
    assert [y.shape for y in outputs(meta)] == [y.shape for y in outputs(call)]
