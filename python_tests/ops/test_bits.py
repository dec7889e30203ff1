"""Bitwise guarantees of docs/numerics.md for 16 bits and for processors with bfloat16 products; the others are in the
tables of test_recurrence.py, test_autograd.py and test_pair.py."""

import pytest
import torch

from python_tests.samples import outputs_and_gradients, recurrence_sample
from python_tests.tiers import PAIRS
from rnnkern import reference
from rnnkern.ops import recurrence

needs_bf16 = pytest.mark.skipif(not PAIRS, reason="no kernels of avx512_bf16 here")
each_of_pairs = pytest.mark.parametrize("level", PAIRS)


def drawn(dtype, steps=24, batch=64, hidden=96):
    return recurrence_sample("lstm", steps, batch, hidden, dtype=dtype, requires_grad=True)


def assert_same_bits(first, second):
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def again(*args, **kwargs):
    return recurrence(*args, **kwargs, save_gates=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gates_computed_again_from_16_bits_leave_the_results_as_they_are(dtype):
    sample = drawn(dtype)
    kept, computed = (outputs_and_gradients(op, sample) for op in (recurrence, again))
    results = {name: value for name, value in kept.items() if not name.startswith("grad")}
    assert len(results) == 3
    assert_same_bits(results, computed)


def test_second_derivatives_are_the_references_in_the_dtype_of_the_tensors():
    sample = drawn(torch.bfloat16, steps=4, batch=3, hidden=8)

    def second(op, **options):
        h, _ = op(*sample.args, **sample.kwargs, **options)
        u = sample.args[1]
        (first,) = torch.autograd.grad(h.sum(), u, create_graph=True)
        return torch.autograd.grad(first.sum(), u)[0]

    assert torch.equal(second(recurrence, save_u=True), second(reference.recurrence))


# ---- avx512_bf16 and amx, which have bfloat16 products


@needs_bf16
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_they_are_avx512_for_other_dtypes(dtype, simd):
    sample, results = drawn(dtype), []
    for name in ("avx512", *PAIRS):
        simd(name)
        results.append(outputs_and_gradients(recurrence, sample))
        assert_same_bits(results[0], results[-1])


@each_of_pairs
def test_gates_computed_again_give_the_same_gradients(level, simd):
    """The products of the forward pass also read h with 16 bits."""
    simd(level)
    sample = drawn(torch.bfloat16)
    assert_same_bits(*(outputs_and_gradients(op, sample) for op in (recurrence, again)))
