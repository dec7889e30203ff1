"""Kernels refuse arguments whose sizes or dtypes do not fit, over the table of operators.

The registered operators receive unchecked arguments, and would read or write memory that is not there."""

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from python_tests.ops.test_registration import Entered
from python_tests.samples import gather_sample
from python_tests.samples.operators import F32, F64, draw, results
from rnnkern import ops, reference

CALLS = [
    ("linear_scan", "per step-packed-reset-reverse-no h0"),
    ("moment_filter", "packed-reset-reverse"),
    ("givens_recurrence", "packed-reset-reverse"),
    ("givens_product", "tunable"),
    ("gather_attention", "additive"),
    ("similarity", "lengths"),
    ("schur_weight", "plain"),
    ("relevancy_recurrence", "lstm, packed, reset, carried"),
    ("sab_recurrence", "mlp"),
    ("recurrence", "packed-reset-reverse-weight_ih-dropout-keep"),
    ("recurrence", "packed-grad_scale-heads"),
]
"""The options of each operator that have most tensors."""
SIZES = {"moment_filter": (40, 3, 4)}
"""Enough steps that states are kept for the backward pass."""
FREE = {
    "givens_recurrence": ("angles",),
    "givens_product": ("angles", "x"),
    "gather_attention": ("idx", "v"),
    "similarity": ("values",),
}
"""Arguments that may have other sizes."""
CHANGES = {
    "a row less": lambda x: x[1:],
    "a row more": lambda x: torch.cat([x, x[-1:]]),
    "a column less": lambda x: x[..., 1:],
    "another dtype": lambda x: x.to(F32 if x.dtype == F64 else F64),
    "another order": lambda x: x.flip(0),
}


@pytest.mark.parametrize(("name", "option"), CALLS)
def test_kernels_refuse_what_does_not_fit(name, option):
    call = draw(name, *SIZES.get(name, ()), option=option, dtype=F32)
    with Entered() as entered:
        results(getattr(ops, name), call)
    for operator, args in entered.calls:
        args = tree_map_only(Tensor, Tensor.detach, list(args))
        for k, x in enumerate(args):
            if isinstance(x, list) and x and isinstance(x[0], Tensor):
                with pytest.raises(RuntimeError):
                    operator(*args[:k], [*x, x[-1]], *args[k + 1 :])
        values, spec = tree_flatten(args)
        names = [x.name for x, given in zip(operator._schema.arguments, args, strict=False) for _ in tree_leaves(given)]
        for k, (argument, x) in enumerate(zip(names, values, strict=True)):
            if not isinstance(x, Tensor) or x.dim() == 0 or argument in FREE.get(name, ()):
                continue
            for what, change in CHANGES.items():
                if what == "another order" and argument != "batch_sizes":
                    continue
                if what == "another dtype" and name == "sab_recurrence" and argument.startswith("grad"):
                    continue  # its backward pass takes any
                changed = tree_unflatten([*values[:k], change(x), *values[k + 1 :]], spec)
                with pytest.raises(RuntimeError):
                    operator(*changed)


def test_kernels_read_no_memory_by_indices_that_are_not_there():
    """Of similarity and gather_attention, lengths and indices out of range are those of the nearest or of none."""
    x = torch.randn(3, 4, 5)
    rest = (4,), "unbiased", 1e-8, "causal", 1.0, False, False
    for wild, tame in ((2**40, 4), (-(2**40), 0)):
        found, wanted = (
            torch.ops.rnnkern.similarity(x, None, None, None, None, torch.tensor([n, 2, n]), *rest)[0]
            for n in (wild, tame)
        )
        assert torch.equal(found, wanted)
    q, u, h, idx, v = gather_sample(2, 4, 3, 3, 5)
    wild = torch.where(idx == 1, torch.tensor([2**31 - 1, -(2**31), 3] * 4).view(1, 4, 3), idx).int()
    tame = torch.where(idx == 1, -1, idx).int()
    v = v.view(1, -1)
    (out, lse, *rest), mine = (
        torch.ops.rnnkern.gather_attention(q, u, h, i, v, False, True, True) for i in (tame, wild)
    )
    assert all(map(torch.equal, mine, (out, lse, *rest)))
    backward = torch.ops.rnnkern.gather_attention_backward
    assert all(map(torch.equal, *(backward(out, q, u, h, i, v, lse, False) for i in (wild, tame))))
    assert torch.equal(*(reference.gather_attention(q, u, h, i, v[0]) for i in (wild, tame)))
