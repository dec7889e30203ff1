"""similarity against its reference and against gather_attention: values, derivatives, identities, and all options."""

import math

import pytest
import torch
from torch.library import opcheck

import rnnkern
from python_tests.samples import (
    agree,
    covering_rows,
    draws,
    similarity_outputs_and_gradients,
    similarity_sample,
)
from python_tests.tiers import each_level
from rnnkern import reference
from rnnkern.ops import gather_attention, similarity
from rnnkern.ops._relational.context_norm import context_norm
from rnnkern.reference._relational import context_norm as plain_norm

SIZES = {"batch": [0, 1, 3, 65], "objects": [1, 2, 3, 9, 17], "features": [1, 33, 128, 257]}
OPTIONS = {
    "mask": ["causal", "strict", "full"], "norm": ["unbiased", "biased", None], "two": [False, True],
    "affine": [False, True], "values": [0, 5], "lengths": [False, True], "packed": [False, True],
}  # fmt: skip
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
"""Tests of opcheck; the other one takes half a minute to compile the reference's second derivative."""

_operators = torch.ops.rnnkern


def rows(sizes):
    """Sizes and options: each pair of values of two factors occurs in some."""
    for row in covering_rows(sizes | OPTIONS):
        if row["mask"] == "full":
            row["packed"] = False
        yield row


def check(*sizes, **options):
    """Compares random calls with the reference."""
    samples = draws(similarity_sample, *sizes, **options)
    agree(similarity, reference.similarity, similarity_outputs_and_gradients, samples, f"{sizes} {options}")


# ---- values and gradients


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_and_gradients(dtype):
    for row in rows(SIZES):
        check(**row, dtype=dtype)


@pytest.mark.parametrize("objects", [128, 129])
def test_many_objects(objects):
    for batch, features, mask in ((3, 33, "causal"), (1, 257, "full"), (2, 1, "strict"), (0, 128, "causal")):
        check(batch, objects, features, mask=mask, dtype=torch.float32, lengths=True, values=3)


@pytest.mark.parametrize("segments", [(6,), (2, 2, 2), (1, 5), (3, 1, 2), (1,) * 6], ids=str)
def test_segments(segments):
    for lengths in (False, True):
        check(7, 6, 40, segments=segments, lengths=lengths, two=True)
        check(7, 6, 40, segments=segments, lengths=lengths, dtype=torch.float32, norm="biased")


@each_level
def test_every_simd_level(level, simd):
    simd(level)
    for dtype in (torch.float32, torch.float64):
        for row in rows({"batch": [1, 5], "objects": [3, 9, 17], "features": [7, 40, 65]}):
            check(**row, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_computed_in_float32_and_rounded_once(dtype):
    call = similarity_sample(5, 9, 64, dtype=dtype, values=8)
    found, wide = (similarity_outputs_and_gradients(similarity, call, kind) for kind in (None, torch.float32))
    for name in ("R", "S", "product"):
        assert found[name].dtype == dtype
        assert torch.equal(found[name], wide[name].to(dtype))
    for name in ("grad of x", "grad of values", "grad of weight"):
        assert found[name].dtype == dtype
        assert found[name].isfinite().all()
        torch.testing.assert_close(
            found[name].float(), wide[name], rtol=0.03, atol=0.03 * wide[name].abs().max().item()
        )


def test_gather_attention_finds_the_same():
    """With an identity as values it returns R, and any list of columns is a mask. It needs z, and T <= d."""
    T, d = 5, 8
    x = torch.randn(3, T, d, dtype=torch.float64, requires_grad=True)
    j, eye = torch.arange(T), torch.eye(T, d, dtype=torch.float64).expand(3, -1, -1)
    upstream = torch.randn(3, T, T, dtype=torch.float64)
    for mask, member in {"causal": j <= j.view(-1, 1), "strict": j < j.view(-1, 1), "full": j == j}.items():
        idx = torch.where(member.expand(T, T), j, -1).int().expand(3, -1, -1).contiguous()
        z = plain_norm(x)
        wanted = gather_attention(z, z, eye, idx, torch.ones(d, dtype=torch.float64), alignment="dot")[..., :T]
        found = similarity(x, mask=mask)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)
        pairs = (torch.autograd.grad(y, x, upstream)[0] for y in (found, wanted))
        torch.testing.assert_close(*pairs, rtol=0, atol=1e-11)


def test_y_that_is_x_equals_the_symmetric_form():
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        x = torch.randn(4, 9, 33, dtype=dtype, requires_grad=True)
        once, twice = (similarity(*args, scale=0.2) for args in ((x,), (x, x)))
        assert torch.equal(once, twice)
        upstream = torch.randn_like(once)
        grads = (torch.autograd.grad(y, x, upstream)[0] for y in (once, twice))
        torch.testing.assert_close(*grads, rtol=bound, atol=bound)


def test_the_order_of_samples_does_not_change_a_bit():
    x, order = torch.randn(67, 9, 130), torch.randperm(67)
    assert torch.equal(similarity(x)[order], similarity(x[order]))
    assert torch.equal(similarity(x)[3:4], similarity(x[3:4]))


@pytest.mark.parametrize("layout", ["transposed", "expanded", "gaps"])
def test_any_layout(layout):
    call = similarity_sample(4, 5, 9, two=True, values=3)
    changed = {
        "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
        "expanded": lambda t: t[:1].expand_as(t),
        "gaps": lambda t: torch.stack([t, t], -1).flatten(-2)[..., ::2],
    }[layout]
    strange = call._replace(tensors={name: changed(t) for name, t in call.tensors.items()})
    plain = call._replace(tensors={name: t.contiguous() for name, t in strange.tensors.items()})
    found, wanted = (similarity_outputs_and_gradients(similarity, c) for c in (strange, plain))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


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


def test_rows_sum_to_one_or_have_no_member():
    x = torch.randn(5, 7, 20, dtype=torch.float32)
    lengths = torch.tensor([0, 1, 3, 7, 7])
    for mask, least in (("causal", 0), ("strict", 1), ("full", 0)):
        R = similarity(x, mask=mask, lengths=lengths)
        i = torch.arange(7)
        wanted = ((i >= least) & (i < lengths.view(-1, 1))).float()
        torch.testing.assert_close(R.sum(-1), wanted, rtol=0, atol=1e-6)
        assert (R[0] == 0).all()


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
    call = similarity_sample(9, 6, 12, lengths=True, two=True, values=3, dtype=torch.float32)
    assert call.tensors["x"].isnan().any()
    found = similarity_outputs_and_gradients(similarity, call)
    assert all(t.isfinite().all() for t in found.values())
    gone = torch.arange(6) >= call.options["lengths"].unsqueeze(1)
    assert all((found[f"grad of {name}"][gone] == 0).all() for name in ("x", "y", "values"))


def test_nan_of_an_object_reaches_its_sample_alone():
    x = torch.randn(3, 4, 5)
    x[1, 2, 3] = torch.nan
    R = similarity(x)
    assert R[1, 3].isnan().all()
    assert R[[0, 2]].isfinite().all()


# ---- derivatives and transforms

CASES = [
    {"mask": "causal"}, {"mask": "strict", "two": True, "packed": True},
    {"mask": "full", "values": 2, "norm": "biased"}, {"norm": None, "two": True},
    {"segments": (2, 1), "lengths": True, "values": 2}, {"eps": 0.5, "packed": True},
]  # fmt: skip


@pytest.mark.parametrize("options", CASES, ids=str)
def test_gradients_of_every_order(options):
    call = similarity_sample(3, 3, 3, **options)
    names = list(call.tensors)
    leaves = [t.nan_to_num(0.3).requires_grad_() for t in call.tensors.values()]

    def function(*leaves):
        return similarity(**dict(zip(names, leaves, strict=True)), **call.options)

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


def test_gradgradcheck_of_one_call_in_full():
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: similarity(x, eps=0.1, return_scores=True), (x,))


@pytest.mark.parametrize("options", [CASES[1], CASES[4]], ids=str)
@pytest.mark.parametrize("batch", [0, 4])
def test_operators_pass_torchs_own_checks(options, batch):
    call = similarity_sample(batch, 3, 5, **options)
    t, o = call.tensors, {"norm": "unbiased", "eps": 1e-8, "segments": (3,), "packed": False} | call.options
    given = [t.get(name) for name in ("x", "y", "weight", "bias", "values")]
    given[2], given[3] = given[2].unsqueeze(0), given[3].unsqueeze(0)
    rest = o["segments"], o["norm"], o["eps"], o.get("mask", "causal"), o["scale"], o["packed"]
    arguments = (*given, o.get("lengths"), *rest)
    opcheck(_operators.similarity.default, (*arguments, True))
    R, S, *product = _operators.similarity(*arguments, True)
    leaves = [None if a is None else a.clone().requires_grad_() for a in (*given,)]
    grads = [torch.randn_like(y).requires_grad_() for y in (R, S, *product)]
    grads = [*grads, *[None] * (3 - len(grads))]
    opcheck(_operators.similarity_backward.default, (*grads, *leaves, o.get("lengths"), R, *rest), test_utils=CHECKS)


def test_export_with_any_number_of_samples():
    class Model(torch.nn.Module):
        def forward(self, x):
            return similarity(x, packed=True)

    x = torch.randn(4, 5, 6)
    program = torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}})
    assert torch.equal(program.module()(x[:3]), similarity(x[:3], packed=True))


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (1, 0), (None, 0)], ids=str)
def test_members_of_vmap(in_dims):
    of_x, of_weight = in_dims
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64) if of_x is not None else torch.randn(2, 4, 5, dtype=torch.float64)
    x = x.transpose(0, 1).contiguous() if of_x == 1 else x
    weight = torch.rand(*(() if of_weight is None else (3,)), 5, dtype=torch.float64)

    def gradients(x, weight):
        return torch.func.grad(lambda x, w: similarity(x, weight=w, bias=w).square().sum(), (0, 1))(x, weight)

    found = torch.vmap(gradients, in_dims)(x, weight)
    for k in range(3):
        one = [t if dim is None else t.select(dim, k) for t, dim in zip((x, weight), in_dims, strict=True)]
        for a, b in zip(found, gradients(*one), strict=True):
            torch.testing.assert_close(a[k], b)


def test_what_the_backward_keeps():
    """R, and the arguments."""
    call = similarity_sample(4, 9, 128, packed=True, values=3)
    leaves = {name: t.requires_grad_() for name, t in call.tensors.items()}
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(x.data_ptr(), x), lambda x: x):
        similarity(**leaves, packed=True)
    given = {t.data_ptr() for t in leaves.values()}
    assert sum(t.numel() for place, t in kept.items() if place not in given) == 4 * 45


# ---- errors, and the choice of the implementation

X = torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("error", "changed", "said"),
    [
        (TypeError, {"x": [1.0]}, "`x` must be a tensor, got list"),
        (TypeError, {"x": X.long()}, "`x` must have one of the dtypes .* got torch.int64"),
        (ValueError, {"x": X[0]}, r"`x` must be \(B, T, d\) .* got \(3, 4\)"),
        (ValueError, {"x": X[:, :0]}, r"`x` must be .* T and d of at least 1, got \(2, 0, 4\)"),
        (TypeError, {"y": X.double()}, "`y` must be of dtype torch.float32 like `x`, got torch.float64"),
        (ValueError, {"y": X[:, 1:]}, r"`y` must be \(B, T, d\) = \(2, 3, 4\), got \(2, 2, 4\)"),
        (ValueError, {"weight": torch.zeros(4)}, "`bias` must be given where `weight` is, got None"),
        (
            ValueError,
            {"weight": torch.zeros(3), "bias": torch.zeros(3)},
            r"`weight` must be \(d,\) = \(4,\), got \(3,\)",
        ),
        (ValueError, {"weight": X[0, 0], "bias": X[0, 0], "norm": None}, "`weight` and `bias` must be None for `norm`"),
        (ValueError, {"norm": "layer"}, "`norm` must be one of .* got 'layer'"),
        (TypeError, {"eps": None}, "`eps` must be a number, got None"),
        (ValueError, {"eps": -1.0}, "`eps` must not be negative, got -1.0"),
        (ValueError, {"eps": math.inf}, "`eps` must be finite, got inf"),
        (TypeError, {"segments": 3}, "`segments` must be a tuple of ints, got 3"),
        (TypeError, {"segments": (1.0, 2)}, "`segments` must be a tuple of ints"),
        (ValueError, {"segments": (0, 3)}, r"`segments` must be at least 1 each, got \(0, 3\)"),
        (ValueError, {"segments": (2, 2)}, r"`segments` must sum to T = 3, got \(2, 2\)"),
        (TypeError, {"lengths": torch.ones(2)}, "`lengths` must be an int64 tensor, got torch.float32"),
        (ValueError, {"lengths": torch.ones(3).long()}, r"`lengths` must be \(B,\) = \(2,\), got \(3,\)"),
        (ValueError, {"lengths": torch.tensor([1, 4])}, r"`lengths` must be in \[0, 3\], got 1 to 4"),
        (ValueError, {"lengths": torch.tensor([-1, 1])}, r"`lengths` must be in \[0, 3\], got -1 to 1"),
        (ValueError, {"mask": "past"}, "`mask` must be one of .* got 'past'"),
        (TypeError, {"scale": "d"}, "`scale` must be a number, got 'd'"),
        (ValueError, {"scale": math.nan}, "`scale` must be finite, got nan"),
        (ValueError, {"values": X[:, 1:]}, r"`values` must be \(B, T, e\) = \(2, 3, e\) .* got \(2, 2, 4\)"),
        (TypeError, {"packed": 1}, "`packed` must be a bool, got 1"),
        (ValueError, {"packed": True, "mask": "full"}, "`packed` must be False for `mask` 'full'"),
        (TypeError, {"return_scores": None}, "`return_scores` must be a bool, got None"),
    ],
)
def test_errors_name_the_argument(error, changed, said):
    with pytest.raises(error, match=f"similarity: {said}"):
        similarity(**({"x": X} | changed))


def test_the_operator_reads_no_memory_that_is_not_there():
    """The operator receives unchecked lengths."""
    x = torch.randn(3, 4, 5)
    rest = (4,), "unbiased", 1e-8, "causal", 1.0, False, False
    for wild, tame in ((2**40, 4), (-(2**40), 0)):
        found, wanted = (
            _operators.similarity(x, None, None, None, None, torch.tensor([n, 2, n]), *rest)[0] for n in (wild, tame)
        )
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_reference_as_a_fallback_computes_the_same(dtype):
    """It takes the instance norm where it can."""
    for row in rows({"batch": [0, 3], "objects": [1, 2, 9], "features": [1, 40]}):
        with rnnkern.use("reference"):
            check(**row, dtype=dtype)
