"""Calls drawn by Hypothesis agree with the reference: sizes, options, layouts, SIMD levels and threads.

Those of the recurrence are in test_properties.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from python_tests.ops.drawn import FEW, batch_sizes_of, machine, spread
from python_tests.samples.agreement import changed, nudged, wide
from python_tests.samples.operators import F32, F64, OPERATORS, Call, draw, results
from python_tests.tiers import LEVELS
from rnnkern import ops, use
from rnnkern.testing import GROSS, assert_close

ALL = (F64, F32, torch.bfloat16)
DTYPES = {
    "givens_recurrence": [F64], "moment_filter": [F64, F32], "relevancy_recurrence": [F64], "sab_recurrence": [F64],
}  # fmt: skip
"""Dtypes of operators that do not test all. For tiny |z| the direction, and so the recurrence, depends on chance in
less than double precision; the filter has float32 states for 16-bit sequences; and a rounded score selects another
event. Other dtypes are covered by tests of these operators."""
CASES = [(name, dtype) for name in OPERATORS if name != "recurrence" for dtype in DTYPES.get(name, ALL)]

PACKED = ("linear_scan", "moment_filter", "givens_recurrence")
BATCHED = ("givens_product", "skew_exp", "cayley", "project_orthogonal", "schur_weight", "householder_product")


def drawn(data, name):
    """A call in double precision with tensors in any memory layout, some of them one row that is expanded."""
    row = OPERATORS[name]
    sizes = [data.draw(st.integers(0, most) if most >= 0 else st.integers(1, -most)) for most in row.most]
    option = data.draw(st.sampled_from(sorted(row.options)))
    more = {"dtype": data.draw(st.sampled_from([dtype for dtype in row.dtypes if dtype.to_real() == F64]))}
    if name in BATCHED:
        more["batch"] = tuple(data.draw(st.lists(st.integers(0, 3), max_size=2)))
    if name in PACKED and row.options[option].get("packed") and row.options[option].get("initial", True):
        more["packed"] = data.draw(batch_sizes_of(*sizes[:2]))
    call = draw(name, *sizes, option=option, **more)
    tensors = {key: data.draw(spread(x)) for key, x in call.tensors.items()}
    if "idx" in call.options:
        call.options["idx"] = data.draw(spread(call.options["idx"].double())).int()
    # The NaN behind the end of one sample would be inside another.
    one_for_all = name not in ("relevancy_recurrence", "sab_recurrence") and option != "lengths"
    for key, x in tensors.items():
        if one_for_all and len(x) and data.draw(st.integers(0, 4)) == 0:
            tensors[key] = x[:1].expand(x.shape)
    return call._replace(tensors=tensors)


def as_dtype(x, dtype):
    """In another precision, with the same strides and the same values between elements."""
    dtype = dtype.to_complex() if x.is_complex() else dtype
    size = x.untyped_storage().nbytes() // x.element_size()
    return x.as_strided((size,), (1,), 0).to(dtype, copy=True).as_strided(x.shape, x.stride(), x.storage_offset())


def transposed(y):
    """So that upstream gradients are not contiguous."""
    return y.permute(*reversed(range(y.dim())))


def contiguous(call: Call) -> Call:
    return call._replace(
        tensors={key: x.clone(memory_format=torch.contiguous_format) for key, x in call.tensors.items()}
    )


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
@FEW
@given(data=st.data(), seed=st.integers(0, 2**31), level=st.sampled_from(LEVELS), threads=st.integers(1, 3))
def test_any_call_gives_the_references_numbers(name, dtype, data, seed, level, threads):
    """A large multiple of the naive error is allowed, because a single call says little; other tests pool many. In
    float64 the naive results are the reference's for nudged arguments."""
    torch.manual_seed(seed)
    call = drawn(data, name)
    call = changed(call, lambda x: as_dtype(x, dtype))
    plain = contiguous(call)
    near = changed(plain, nudged) if dtype == F64 else plain
    op = getattr(ops, name)
    with use("reference"):
        naive, truth = (results(op, like, transposed) for like in (near, changed(plain, wide)))
    with machine(level, threads):
        found = results(op, call, transposed)
    for what, wanted in truth.items():
        assert_close(found[what], naive[what], wanted, what, GROSS, scale=1.0)
