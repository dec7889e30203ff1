"""Values and gradients are the reference's by the closeness rule, over the table of operators.

Sizes are awkward, with every option, dtype and SIMD level. Operators whose selections need more care have files of
their own."""

import pytest
import torch

import rnnkern
from python_tests.samples import agree, changed, covering_rows, draws
from python_tests.samples.operators import F32, OPERATORS, cases, check, draw, outputs, results
from python_tests.tiers import each_level, quick_where
from rnnkern import ops
from rnnkern.ops._scan.moment_filter import EVERY

BATCHES = [(), (2,), (0, 2), (2, 3)]
SIMILARITY = {
    "mask": ["causal", "strict", "full"], "norm": ["unbiased", "biased", None], "two": [False, True],
    "affine": [False, True], "values": [0, 5], "lengths": [False, True], "packed": [False, True],
}  # fmt: skip
SIZES = {
    "linear_scan": {"steps": [0, 1, 2, 63, 300], "batch": [0, 1, 3, 17], "channels": [1, 5, 33, 128, 200]},
    "moment_filter": {"steps": [0, 1, EVERY, 2 * EVERY + 1, 150], "batch": [0, 1, 3, 17], "channels": [1, 5, 33, 200]},
    "givens_recurrence": {
        "steps": [0, 1, 2, 40], "batch": [0, 1, 3, 17, 40], "layers": [1, 2, 7, 30], "size": [1, 2, 33, 200],
    },
    "givens_product": {"size": [2, 7, 33, 64], "layers": [1, 5, 40], "vectors": [1, 6, 65, 100], "batch": BATCHES},
    "gather_attention": {
        "batch": [0, 1, 8], "queries": [0, 2, 9, 63], "memories": [2, 5, 70], "slots": [0, 1, 3, 20, 90],
        "hidden": [1, 16, 33, 128, 200],
    },
    "similarity": {"batch": [0, 1, 3, 65], "objects": [1, 2, 3, 9, 17], "features": [1, 33, 128, 257]} | SIMILARITY,
    "skew_exp": {"size": [1, 2, 9, 40, 100], "batch": BATCHES, "scale": [1e-5, 0.01, 0.1, 0.5, 3.0]},
    "cayley": {"size": [1, 2, 17, 40], "batch": BATCHES},
    "project_orthogonal": {"size": [1, 2, 17, 40], "batch": BATCHES},
    "schur_weight": {"size": [1, 2, 3, 8, 33], "batch": BATCHES},
    "householder_product": {"size": [2, 5, 33, 128], "count": [1, 5, 7, 128], "batch": BATCHES},
}  # fmt: skip
"""Of which any two values occur together in some call."""
AT_EACH_LEVEL = {
    "linear_scan": {"steps": [21], "channels": [1, 37, 64]},
    "moment_filter": {"steps": [35], "channels": [1, 37, 64]},
    "givens_recurrence": {"steps": [9], "batch": [21], "size": [32, 37], "layers": [6]},
    "givens_product": {"size": [64, 71], "layers": [9], "vectors": [67], "batch": [(2,)]},
    "gather_attention": {"batch": [3], "queries": [20], "memories": [11], "slots": [6], "hidden": [3, 37, 64]},
    "similarity": {"batch": [1, 5], "objects": [3, 9, 17], "features": [7, 40, 65]} | SIMILARITY,
    "skew_exp": {"size": [9, 37, 65], "batch": [(4,)], "scale": [0.01, 0.1, 0.5, 2.0]},
    "schur_weight": {"size": [37], "batch": [(2,)]},
}


def each(table):
    """Operators with each dtype, float32 in `make test`."""
    return quick_where(
        lambda case: case[1] == F32, [(name, dtype) for name in table for dtype in OPERATORS[name].dtypes]
    )


def rows_of(name, sizes):
    """Keywords of ``check``; the options of similarity are factors of their own."""
    return covering_rows(sizes if name == "similarity" else sizes | {"option": list(OPERATORS[name].options)})


@pytest.mark.parametrize(("name", "dtype"), each(SIZES), ids=str)
@pytest.mark.drawn
def test_values_and_gradients(name, dtype):
    for row in rows_of(name, SIZES[name]):
        check(name, **row, dtype=dtype)


@each_level
@pytest.mark.parametrize(("name", "dtype"), each(AT_EACH_LEVEL), ids=str)
@pytest.mark.drawn
def test_every_simd_level(name, dtype, level, simd):
    simd(level)
    for row in rows_of(name, AT_EACH_LEVEL[name]):
        check(name, **row, dtype=dtype)


def fallback(name):
    """The operator where no kernel serves."""

    def call(**arguments):
        with rnnkern.use("reference"):
            return getattr(ops, name)(**arguments)

    return call


FALLBACKS = [*cases(SIZES), *cases(["recurrence", "sab_recurrence"])]


@pytest.mark.parametrize(("name", "option"), FALLBACKS)
def test_the_fallback_computes_the_same(name, option):
    call = draw(name, option=option)
    torch.testing.assert_close(results(fallback(name), call), results(getattr(ops, name), call))


IN_16_BITS = [
    (name, option)
    for name, option in cases([*SIZES, "relevancy_recurrence", "sab_recurrence"])
    if name != "givens_recurrence" and "carried" not in OPERATORS[name].options[option]  # in float32
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("name", "option"), IN_16_BITS)
def test_16_bits_are_computed_in_float32_and_rounded_once(name, option, dtype):
    call = draw(name, option=option, dtype=dtype)
    wide = outputs(changed(call, torch.Tensor.float))
    found = results(getattr(ops, name), call)
    for actual, wanted in zip(outputs(call), wide, strict=True):
        assert torch.equal(actual, wanted.to(actual.dtype))
    assert found["output 0"].dtype == dtype
    assert {x.dtype for x in found.values()} <= {dtype, torch.float32}  # of a state that is carried on
    if name in SIZES:
        samples = draws(draw, name, option=option, dtype=dtype)
        agree(getattr(ops, name), fallback(name), results, samples)
