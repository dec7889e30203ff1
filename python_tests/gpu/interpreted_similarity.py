"""The Triton kernels of similarity on CPU tensors. test_similarity.py runs this file with
TRITON_INTERPRET=1."""

import pytest
import torch

from python_tests.samples import agree, similarity_outputs_and_gradients, similarity_sample
from rnnkern import reference
from rnnkern.ops._relational import similarity_triton

pytestmark = pytest.mark.usefixtures("nan_memory")


class ByTriton(torch.autograd.Function):
    """The forward and the backward pass of the kernels."""

    @staticmethod
    def forward(ctx, rest, *tensors):
        ctx.rest = rest
        lengths, *options = rest
        outputs = similarity_triton.forward(*tensors, lengths, *options, True)
        ctx.save_for_backward(*tensors, outputs[0])
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *grads):
        *tensors, R = ctx.saved_tensors
        lengths, *options = ctx.rest
        grads = [*grads, *[None] * (3 - len(grads))]
        found = similarity_triton.backward(*grads, *tensors, lengths, R, *options)
        return None, *(None if t is None else g for t, g in zip(tensors, found, strict=True))


def by_triton(x, y=None, weight=None, bias=None, values=None, *, norm="unbiased", eps=1e-8, segments=None, lengths=None,
              mask="causal", scale=1.0, packed=False, return_scores=True):  # fmt: skip
    weight, bias = (None if t is None else t.unsqueeze(0) for t in (weight, bias))
    rest = lengths, list(segments or (x.shape[1],)), norm or "none", eps, mask, scale, packed
    return ByTriton.apply(rest, x, y, weight, bias, values)


CALLS = [
    {"mask": "causal", "packed": True},
    {"mask": "strict", "packed": True, "values": 3, "lengths": True},
    {"mask": "full", "two": True, "values": 20, "norm": "biased"},
    {"mask": "causal", "norm": None, "two": True, "lengths": True},
    {"mask": "causal", "segments": (2, 1, 4), "lengths": True},
    {"mask": "strict", "affine": False, "eps": 0.3},
]


def check(*sizes, **options):
    sample = similarity_sample(*sizes, **options)
    agree(by_triton, reference.similarity, similarity_outputs_and_gradients, [sample], f"{sizes} {options}")


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_values_and_gradients(options):
    """Two blocks of features."""
    for dtype in (torch.float32, torch.float64):
        check(2, 7, 70, dtype=dtype, **options)


@pytest.mark.parametrize("objects", [1, 2, 17])
def test_numbers_of_objects(objects):
    check(2, objects, 20, dtype=torch.float32, values=2)


def test_rows_of_weights_for_some_samples_each():
    x, weight, bias = torch.randn(4, 4, 5), torch.rand(2, 5), torch.randn(2, 5)
    rest = None, [4], "unbiased", 1e-8, "causal", 1.0, False
    (R,) = similarity_triton.forward(x, None, weight, bias, None, *rest, False)
    grads = torch.rand_like(R), None, None
    found = similarity_triton.backward(*grads, x, None, weight, bias, None, None, R, *rest[1:])
    for k in range(2):
        mine = slice(2 * k, 2 * k + 2)
        (alone,) = similarity_triton.forward(x[mine], None, weight[k : k + 1], bias[k : k + 1], None, *rest, False)
        assert torch.equal(R[mine], alone)
        wanted = similarity_triton.backward(
            grads[0][mine], None, None, x[mine], None, weight[k : k + 1], bias[k : k + 1], None, None, alone, *rest[1:]
        )
        assert torch.equal(found[0][mine], wanted[0])
        torch.testing.assert_close(found[2][k], wanted[2][0])


def test_nothing():
    check(0, 4, 5, dtype=torch.float32, values=2)


def test_no_subnormal_number_leaves_the_kernel():
    x = torch.randn(16, 9, 32) * (87.3 / 32) ** 0.5
    R, _ = by_triton(x, norm=None)
    naive = reference.similarity(x, norm=None)
    tiny = torch.finfo(torch.float32).tiny
    assert ((naive != 0) & (naive < tiny)).any()
    assert not ((R != 0) & (tiny > R)).any()
