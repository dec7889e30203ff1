"""What similarity alone promises: identities of the normalization, masks, lengths, segments, and tiny numbers."""

import math

import pytest
import torch

import rnnkern
from python_tests.samples import covering_rows, similarity_sample
from python_tests.samples.operators import F32, F64, check, draw, results
from rnnkern import reference
from rnnkern.ops import similarity
from rnnkern.ops._relational.context_norm import context_norm
from rnnkern.reference._relational import context_norm as plain_norm


@pytest.mark.parametrize("objects", [128, 129])
def test_many_objects(objects):
    for batch, features, mask in ((3, 33, "causal"), (1, 257, "full"), (2, 1, "strict"), (0, 128, "causal")):
        check("similarity", batch, objects, features, mask=mask, dtype=torch.float32, lengths=True, values=3)


@pytest.mark.parametrize("segments", [(6,), (2, 2, 2), (1, 5), (3, 1, 2), (1,) * 6], ids=str)
def test_segments(segments):
    for lengths in (False, True):
        check("similarity", 7, 6, 40, segments=segments, lengths=lengths, two=True)
        check("similarity", 7, 6, 40, segments=segments, lengths=lengths, dtype=torch.float32, norm="biased")


def test_y_that_is_x_equals_the_symmetric_form():
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        x = torch.randn(4, 9, 33, dtype=dtype, requires_grad=True)
        once, twice = (similarity(*args, scale=0.2) for args in ((x,), (x, x)))
        assert torch.equal(once, twice)
        upstream = torch.randn_like(once)
        grads = (torch.autograd.grad(y, x, upstream)[0] for y in (once, twice))
        torch.testing.assert_close(*grads, rtol=bound, atol=bound)


# ---- identities


def test_context_norm_is_an_instance_norm():
    """Of n objects: weight sqrt((n - 1) / n), eps (n - 1) / n."""
    x, weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((4, 9, 12), (12,), (12,)))
    for segments in (None, (3, 6), (1, 8)):
        for eps in (1e-8, 1.0):
            pair = (f(x, weight, bias, segments=segments, eps=eps) for f in (context_norm, plain_norm))
            torch.testing.assert_close(*pair, rtol=0, atol=1e-14)
    n = 9
    by_torch = torch.nn.functional.instance_norm(x.mT, eps=1e-8 * (n - 1) / n).mT * ((n - 1) / n) ** 0.5
    torch.testing.assert_close(plain_norm(x), by_torch, rtol=0, atol=1e-14)


def test_two_objects_say_equal_or_not():
    """At eps = 0, z is 1 / sqrt(2) and its negative wherever they differ, whatever the size of the difference."""
    x = torch.randn(8, 2, 6, dtype=torch.float64) * 10.0 ** torch.arange(-6, 2).view(-1, 1, 1)
    z = plain_norm(x, eps=0.0)
    torch.testing.assert_close(z[:, 0], -z[:, 1], rtol=0, atol=1e-12)
    torch.testing.assert_close(z.abs(), torch.full_like(z, 0.5**0.5), rtol=0, atol=1e-12)
    R, S = similarity(x, eps=0.0, return_scores=True)
    torch.testing.assert_close(S[:, 1], torch.tensor([-3.0, 3.0]).double().expand(8, -1), rtol=0, atol=1e-12)
    torch.testing.assert_close(R[:, 1], torch.softmax(S[:, 1], -1), rtol=0, atol=1e-12)


def test_a_single_object_is_the_bias_even_if_eps_is_0():
    x, bias = torch.randn(3, 1, 20).requires_grad_(), torch.randn(20)
    R, S = similarity(x, weight=torch.ones(20), bias=bias, eps=0.0, return_scores=True)
    assert torch.equal(R, torch.ones(3, 1, 1))
    torch.testing.assert_close(S, bias.square().sum().expand(3, 1, 1))
    assert (torch.autograd.grad(S.sum(), x)[0] == 0).all()


def test_packed_is_the_triangle_row_by_row():
    x = torch.randn(3, 5, 8, dtype=torch.float32)
    for mask, rows in (("causal", [(i, j) for i in range(5) for j in range(i + 1)]),
                       ("strict", [(i, j) for i in range(5) for j in range(i)])):  # fmt: skip
        for whole, packed in zip(*(similarity(x, mask=mask, packed=p, return_scores=True) for p in (False, True)),
                                 strict=True):  # fmt: skip
            assert torch.equal(packed, torch.stack([whole[:, i, j] for i, j in rows], 1))


def test_a_sample_beyond_its_length_is_a_shorter_sample():
    call = similarity_sample(1, 6, 12, values=3)
    R, S, product = similarity(**call.tensors, **call.options | {"lengths": torch.tensor([4])})
    short = {name: t[:, :4] if t.dim() == 3 else t for name, t in call.tensors.items()}
    for found, wanted in zip((R[:, :4, :4], S[:, :4, :4], product[:, :4]), similarity(**short, **call.options),
                             strict=True):  # fmt: skip
        assert torch.equal(found, wanted)
    assert all((rest == 0).all() for rest in (R[:, 4:], R[..., 4:], S[:, 4:], product[:, 4:]))


def test_nan_of_padded_objects_reaches_nothing():
    call = draw("similarity", 9, 6, 12, lengths=True, two=True, values=3, dtype=F32)
    assert call.tensors["x"].isnan().any()
    found = results(similarity, call)
    assert all(t.isfinite().all() for t in found.values())
    gone = torch.arange(6) >= call.options["lengths"].unsqueeze(1)
    assert all((found[f"grad of {name}"][gone] == 0).all() for name in ("x", "y", "values"))


def test_nan_of_an_object_reaches_its_sample_alone():
    x = torch.randn(3, 4, 5)
    x[1, 2, 3] = torch.nan
    R = similarity(x)
    assert R[1, 3].isnan().all()
    assert R[[0, 2]].isfinite().all()


def test_export_with_any_number_of_samples():
    class Model(torch.nn.Module):
        def forward(self, x):
            return similarity(x, packed=True)

    x = torch.randn(4, 5, 6)
    program = torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}})
    assert torch.equal(program.module()(x[:3]), similarity(x[:3], packed=True))


@pytest.mark.parametrize("dtype", [F32, F64])
def test_the_fallback_takes_the_instance_norm_where_it_can(dtype):
    # Two objects would become the same values whatever they are, so their gradient would have rounding errors alone.
    sizes = {"batch": [0, 3], "objects": [1, 3, 9], "features": [1, 40]}
    options = {"norm": ["unbiased", "biased"], "affine": [False, True], "lengths": [False, True]}
    for row in covering_rows(sizes | options):
        with rnnkern.use("reference"):
            check("similarity", **row, dtype=dtype)


# ---- where low precision is hard


def test_constant_features_and_equal_objects_are_finite():
    """Their 1 / s is 1e4. A constant feature is exactly the bias."""
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(4, 1, 20, dtype=dtype).repeat(1, 6, 1)
        x[:2, :, ::2] = torch.randn(2, 6, 10, dtype=dtype)
        for bias in (None, torch.randn(20, dtype=dtype)):
            weight = None if bias is None else torch.ones(20, dtype=dtype)
            leaf = x.clone().requires_grad_()
            R, S = similarity(leaf, weight=weight, bias=bias, return_scores=True)
            assert all(t.isfinite().all() for t in (R, S, *torch.autograd.grad(R.square().sum(), leaf)))
            square = 0 if bias is None else bias.square().sum()
            wanted = torch.full_like(S[2:], square).tril()
            torch.testing.assert_close(S[2:], wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_subnormal_number_leaves_the_kernel(dtype):
    """Scores that differ by up to the largest exponent, where PyTorch's softmax leaves subnormal numbers."""
    tiny = torch.finfo(dtype).tiny
    size = math.log(1 / tiny)
    x = torch.randn(512, 9, 128, dtype=dtype) * (size / 128) ** 0.5
    naive = reference.similarity(x, norm=None)
    assert ((naive != 0) & (naive < tiny)).any()
    x.requires_grad_()
    R = similarity(x, norm=None)
    assert not ((R != 0) & (tiny > R)).any()
    _, kept = torch.ops.rnnkern.similarity(x.detach(), None, None, None, None, None, (9,), "none", 0.0, "causal", 1.0,
                                           False, True)  # fmt: skip
    eye = torch.eye(9, 128, dtype=dtype).expand(512, -1, -1).contiguous()  # then dx holds dS itself
    (grad, *_) = torch.ops.rnnkern.similarity_backward(
        torch.rand_like(R), None, None, eye, eye.clone(), None, None, None, None, R.detach(), (9,), "none", 0.0,
        "causal", 1.0, False,
    )  # fmt: skip
    assert kept.isfinite().all()
    assert not ((grad != 0) & (grad.abs() < tiny)).any()
