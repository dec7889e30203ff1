"""gather_attention against its reference: values, derivatives, all kinds of lists, and the ids of a relevancy
recurrence."""

import pytest
import torch
from torch.library import opcheck

import rnnkern
from python_tests.samples import agree, covering_rows, draws, gather_sample
from python_tests.tiers import each_level
from rnnkern import reference
from rnnkern.ops import gather_attention, relevancy_recurrence

NAMES = ("out", "weights", "grad of q", "grad of u", "grad of h", "grad of v")
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
"""Tests of opcheck; the other one takes half a minute to compile the reference's second derivative."""

_operators = torch.ops.rnnkern


def everything(function, tensors, dtype=None, **options):
    q, u, h, idx, v = tensors
    leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in (q, u, h, v)]
    q, u, h, v = leaves
    out, weights = function(q, u, h, idx, v, return_weights=True, **options)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(out.dtype)
    return out.detach(), weights, *torch.autograd.grad(out, leaves, upstream)


def check(make, *sizes, alignment="additive", scale=0.0, **options):
    """Compares random calls, which a function draws, with the reference."""

    def results(function, tensors):
        return dict(zip(NAMES, everything(function, tensors, alignment=alignment), strict=True))

    samples = draws(make, *sizes, **options)
    agree(gather_attention, reference.gather_attention, results, samples, f"{sizes} {options}", scale)


# ---- values and gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alignment", ["additive", "dot"])
def test_values_and_gradients(alignment, dtype):
    sizes = {
        "batch": [1, 3, 8], "queries": [2, 9, 63], "memories": [2, 5, 70], "slots": [1, 3, 20, 90],
        "hidden": [1, 16, 33, 128, 200],
    }  # fmt: skip
    for row in covering_rows(sizes):
        check(gather_sample, **row, dtype=dtype, alignment=alignment)


def test_int64_indices_are_those_of_int32():
    """The ids of a relevancy state are int64."""
    q, u, h, idx, v = gather_sample(2, 5, 7, 4, 9)
    wide = torch.where(idx < 0, torch.tensor(-(2**40)), idx.long())
    assert torch.equal(gather_attention(q, u, h, wide, v), gather_attention(q, u, h, idx, v))


@each_level
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_simd_level(level, dtype, simd):
    simd(level)
    for hidden in (3, 37, 64):
        for alignment in ("additive", "dot"):
            check(gather_sample, 3, 20, 11, 6, hidden, dtype=dtype, alignment=alignment)


@pytest.mark.parametrize("scale", [1e-4, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_that_hardly_differ_and_that_leave_one(dtype, scale):
    def sample():
        q, u, h, idx, v = gather_sample(8, 30, 30, 8, 40, dtype=dtype)
        return q * min(scale, 1), u * min(scale, 1), h, idx, v * max(scale, 1)

    check(sample, scale=scale)  # with one weight of almost 1, the terms of gradients cancel


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_memory_that_all_attend_to(dtype):
    def sample():
        q, u, h, idx, v = gather_sample(2, 700, 5, 3, 24, dtype=dtype)
        return q, u, h, torch.where(idx < 0, idx, 3).int(), v

    check(sample, scale=100.0)  # all scores of a list are equal, so the 2,100 terms of a gradient of u cancel


@pytest.mark.parametrize(("batch", "queries", "memories", "slots"), [
    (0, 3, 4, 2), (2, 0, 4, 2), (2, 3, 0, 2), (2, 3, 4, 0), (2, 3, 4, 1), (1, 1, 1, 1),
])  # fmt: skip
def test_sizes_of_nothing_and_one(batch, queries, memories, slots):
    idx = torch.arange(queries * slots).view(queries, slots).remainder(max(memories, 1)) - int(memories == 0)

    def sample():
        q, u, h, v = (torch.randn(*sizes, 6) for sizes in ((batch, queries), (batch, memories), (batch, memories), ()))
        return q, u, h, idx.int().expand(batch, -1, -1), v

    check(sample)


def test_each_sample_has_the_bits_that_it_has_alone():
    q, u, h, idx, v = gather_sample(4, 30, 12, 8, 40, dtype=torch.float32)
    together = gather_attention(q, u, h, idx, v, return_weights=True)
    for b in range(4):
        alone = gather_attention(*(x[b : b + 1] for x in (q, u, h, idx)), v, return_weights=True)
        assert all(torch.equal(x[b], y[0]) for x, y in zip(together, alone, strict=True))


@pytest.mark.parametrize("layout", ["transposed", "expanded", "gaps", "the same"])
def test_any_layout(layout):
    tensors = {
        "transposed": lambda: [x.transpose(0, 1).contiguous().transpose(0, 1) for x in gather_sample()[:4]],
        "expanded": lambda: [x[:1].expand(2, *x.shape[1:]) for x in gather_sample()[:4]],
        "gaps": lambda: [torch.stack([x, x], -1).flatten(-2)[..., ::2] for x in gather_sample()[:4]],
        "the same": lambda: (lambda q, u, h, idx, v: [q, u, u, idx])(*gather_sample()),
    }[layout]()
    v = torch.randn(1, dtype=torch.float64).expand(9)
    actual = everything(gather_attention, (*tensors, v))
    for a, b in zip(actual, everything(gather_attention, [x.contiguous() for x in (*tensors, v)]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_computed_in_float32_and_rounded_once(dtype):
    tensors = gather_sample(dtype=dtype)
    actual, naive = everything(gather_attention, tensors), everything(gather_attention, tensors, torch.float32)
    for a, b in zip(actual[:2], naive[:2], strict=True):
        assert a.dtype == dtype
        assert torch.equal(a, b.to(dtype))
    check(gather_sample, dtype=dtype)
    with rnnkern.use("reference"):
        assert torch.equal(gather_attention(*tensors), reference.gather_attention(
            *(x.float() if x.is_floating_point() else x for x in tensors)).to(dtype))  # fmt: skip


# ---- contents of lists


def test_what_lists_mean():
    q, u, h, _, v = gather_sample(1, 3, 4, 0, 5)
    idx = torch.tensor([[[2, -1, 0], [-1, -1, -1], [1, 1, 3]]], dtype=torch.int32)
    out, weights = gather_attention(q, u, h, idx, v, return_weights=True)
    e = (v * torch.tanh(q[0, :, None] + u[0])).sum(-1)
    alpha = torch.softmax(e[0, [2, 0]], 0)
    torch.testing.assert_close(weights[0, 0], torch.stack([alpha[0], torch.zeros(()).double(), alpha[1]]))
    torch.testing.assert_close(out[0, 0], alpha @ h[0, [2, 0]])
    assert torch.equal(out[0, 1], torch.zeros(5).double())
    assert torch.equal(weights[0, 1], torch.zeros(3).double())
    twice = torch.softmax(e[2, [1, 1, 3]], 0)
    torch.testing.assert_close(weights[0, 2], twice)
    assert torch.equal(gather_attention(q, u, h, torch.where(idx < 0, -7, idx), v), out)


def test_what_nobody_attends_to_is_not_read():
    q, u, h, idx, v = gather_sample(2, 6, 7, 4, 9)
    idx = idx.clamp_max(3)
    wanted = everything(gather_attention, (q, u, h, idx, v))
    poisoned = [x.index_fill(1, torch.tensor([4, 5, 6]), torch.nan) for x in (u, h)]
    q[:, 0] = torch.nan  # its list is empty
    found = everything(gather_attention, (q, *poisoned, idx, v))
    assert all(torch.equal(x, y) for x, y in zip(wanted, found, strict=True))
    assert (found[3][:, 4:] == 0).all()
    assert (found[4][:, 4:] == 0).all()


def test_scores_that_are_no_numbers():
    q, u, h, v = torch.zeros(1, 4, 2), torch.zeros(1, 3, 2), torch.arange(6.0).view(1, 3, 2), torch.ones(2)
    u[0, 1], u[0, 2] = torch.nan, -torch.inf
    idx = torch.tensor([[[0, 1], [0, 2], [2, -1], [0, 0]]], dtype=torch.int32)
    for alignment, of_minus_infinity in (("additive", None), ("dot", torch.nan)):
        tensors = (torch.ones_like(q) if alignment == "dot" else q, u, h, idx, v)
        out, weights = gather_attention(*tensors, alignment=alignment, return_weights=True)
        assert out[0, 0].isnan().all()
        assert torch.equal(out[0, 3], h[0, 0])
        wanted = reference.gather_attention(*tensors, alignment=alignment, return_weights=True)
        for found, of_reference in zip((out, weights), wanted, strict=True):
            torch.testing.assert_close(found, of_reference, equal_nan=True)
        if of_minus_infinity is not None:
            assert torch.equal(weights[0, 1], torch.tensor([1.0, 0.0]))
            assert out[0, 2].isnan().all()


def test_a_v_for_each_of_some_samples():
    q, u, h, idx, _ = gather_sample(6, dtype=torch.float32)
    v = torch.randn(3, 9)
    check(lambda: (*gather_sample(6, dtype=torch.float32)[:4], torch.randn(3, 9)))
    out = gather_attention(q, u, h, idx, v)
    for b in range(6):
        assert torch.equal(
            out[b], gather_attention(q[b : b + 1], u[b : b + 1], h[b : b + 1], idx[b : b + 1], v[b // 2])[0]
        )


@pytest.mark.parametrize("alignment", ["additive", "dot"])
@pytest.mark.parametrize("combine", ["half", "sum"])
def test_the_weights_of_a_recurrence_are_found_again_from_its_states(combine, alignment):
    u, s0 = torch.randn(17, 3, 6, dtype=torch.float64), torch.randn(3, 6, dtype=torch.float64)
    weights = [torch.randn(*sizes, dtype=torch.float64) / 2 for sizes in ((6, 6), (6, 6), (6, 6), (6,))]
    options = {"buffer_size": 4, "relevant_size": 3, "combine": combine, "alignment": alignment}
    options["reset"] = torch.rand(17, 3) < 0.1
    h, _, memory = relevancy_recurrence("tanh", u, weights[0], (s0,), weights[1:], return_memory=True, **options)
    s, _ = relevancy_recurrence("tanh", u, weights[0], (s0,), weights[1:], output="s", **options)
    before = torch.cat([s0.unsqueeze(0), s[:-1]]).masked_fill(options["reset"].unsqueeze(-1), 0)
    _, W_a, U_a, v = weights
    q, u, h, idx = (x.transpose(0, 1) for x in (before @ W_a.T, h @ U_a.T, h, memory.ids))
    out, alpha = gather_attention(q, u, h, idx, v, alignment=alignment, return_weights=True)
    torch.testing.assert_close(alpha, memory.weights.transpose(0, 1), rtol=0, atol=1e-10)
    wanted = s.transpose(0, 1) / {"half": 0.5, "sum": 1.0}[combine] - h
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-10)


# ---- derivatives and transforms


@pytest.mark.parametrize("alignment", ["additive", "dot"])
def test_gradients_of_every_order(alignment):
    q, u, h, idx, v = gather_sample(2, 3, 3, 3, 2, requires_grad=True)

    def attention(q, u, h, v):
        return gather_attention(q, u, h, idx, v, alignment=alignment)

    assert torch.autograd.gradcheck(attention, (q, u, h, v))
    assert torch.autograd.gradgradcheck(attention, (q, u, h, v))


@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize(("sizes", "dtype"), [((2, 3, 4, 3, 5), torch.float64), ((0, 2, 3, 2, 4), torch.float32)])
def test_operators_pass_torchs_own_checks(sizes, dtype, dot):
    q, u, h, idx, v = gather_sample(*sizes, dtype=dtype)
    inputs = (q, u, h, idx, v.view(1, -1))
    for training, weights in ((False, False), (True, True)):
        opcheck(_operators.gather_attention.default, (*inputs, dot, training, weights))
    out, lse = _operators.gather_attention(*inputs, dot, True, False)
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in (torch.randn_like(out), *inputs)]
    opcheck(_operators.gather_attention_backward.default, (*leaves, lse, dot), test_utils=CHECKS)


@pytest.mark.parametrize("dims", [(0, 0, 0, 0), (0, None, None, None), (1, 0, 2, None), (None, None, None, 0)])
def test_members_of_vmap(dims):
    q, u, h, idx, v = (
        x.unsqueeze(0).repeat(3, *(1,) * x.dim()) if dim is not None else x
        for x, dim in zip(gather_sample(2), (dims[0], dims[1], dims[1], dims[2], dims[3]), strict=True)
    )
    q, u, h, v = (x * torch.rand_like(x) for x in (q, u, h, v))
    in_dims = tuple(0 if dim is not None else None for dim in (dims[0], dims[1], dims[1], dims[2], dims[3]))

    def gradients(*tensors):
        def loss(*tensors):
            return gather_attention(*tensors).square().sum()

        return torch.func.grad(loss, (0, 1, 2, 4))(*tensors)

    found = torch.vmap(gradients, in_dims)(q, u, h, idx, v)
    for k in range(3):
        one = [x if dim is None else x[k] for x, dim in zip((q, u, h, idx, v), in_dims, strict=True)]
        for a, b in zip(found, gradients(*one), strict=True):
            torch.testing.assert_close(a[k], b)


def test_what_the_backward_keeps():
    """One number per query is saved; alpha is recomputed."""
    q, u, h, idx, v = gather_sample(2, 30, 12, 8, 40, requires_grad=True)
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(x.data_ptr(), x), lambda x: x):
        gather_attention(q, u, h, idx, v)
    given = {x.data_ptr() for x in (q, u, h, idx, v)}
    assert sum(x.numel() for place, x in kept.items() if place not in given) == 2 * 30


# ---- errors, and the choice of the implementation

Q, U, IDX = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4), torch.zeros(2, 3, 6, dtype=torch.int32)


@pytest.mark.parametrize(
    ("error", "changed", "said"),
    [
        (TypeError, {"q": [1.0]}, "`q` must be a tensor, got list"),
        (TypeError, {"q": Q.long()}, "`q` must have one of the dtypes .* got torch.int64"),
        (TypeError, {"h": U.double()}, "`h` must be of dtype torch.float32 like `q`, got torch.float64"),
        (TypeError, {"u": U.to("meta")}, "`u` must be on cpu like `q`, got meta"),
        (TypeError, {"idx": IDX.short()}, "`idx` must be an int32 or int64 tensor, got torch.int16"),
        (TypeError, {"idx": None}, "`idx` must be an int32 or int64 tensor, got NoneType"),
        (TypeError, {"idx": IDX.to("meta")}, "`idx` must be on cpu like `q`, got meta"),
        (ValueError, {"q": Q[0]}, r"`q` must be \(B, T, H\) .*, got \(3, 4\)"),
        (ValueError, {"q": Q[..., :0]}, r"`q` must be .* H of at least 1, got \(2, 3, 0\)"),
        (ValueError, {"u": U[:1]}, r"`u` must be \(B, M, H\) = \(2, M, 4\), got \(1, 5, 4\)"),
        (ValueError, {"h": U[:, 1:]}, r"`h` must be \(B, M, H\) = \(2, 5, 4\), got \(2, 4, 4\)"),
        (ValueError, {"idx": IDX[:, 1:]}, r"`idx` must be \(B, T, kappa\) = \(2, 3, kappa\), got \(2, 2, 6\)"),
        (ValueError, {"idx": IDX + 5}, "`idx` must be less than the number of memories M = 5, got 5"),
        (ValueError, {"v": torch.zeros(3)}, r"`v` must be \(H,\) = \(4,\) or .* got \(3,\)"),
        (ValueError, {"v": torch.zeros(3, 4)}, r"`v` .* G that divides B = 2, got \(3, 4\)"),
        (ValueError, {"alignment": "cosine"}, "`alignment` must be one of .* got 'cosine'"),
    ],
)
def test_errors_name_the_argument(error, changed, said):
    arguments = {"q": Q, "u": U, "h": U, "idx": IDX, "v": torch.zeros(4)}
    with pytest.raises(error, match=f"gather_attention: {said}"):
        gather_attention(**(arguments | changed))


def test_the_operator_reads_no_memory_that_is_not_there():
    """The operator receives unchecked arguments."""
    q, u, h, idx, v = gather_sample(2, 4, 3, 3, 5)
    wild = torch.where(idx == 1, torch.tensor([2**31 - 1, -(2**31), 3] * 4).view(1, 4, 3), idx).int()
    tame = torch.where(idx == 1, -1, idx).int()
    for mine, other in zip(*(_operators.gather_attention(q, u, h, i, v.view(1, -1), False, True, True)
                             for i in (wild, tame)), strict=True):  # fmt: skip
        assert torch.equal(mine, other)
    out, lse = _operators.gather_attention(q, u, h, tame, v.view(1, -1), False, True, False)
    for mine, other in zip(*(_operators.gather_attention_backward(out, q, u, h, i, v.view(1, -1), lse, False)
                             for i in (wild, tame)), strict=True):  # fmt: skip
        assert torch.equal(mine, other)
    assert torch.equal(reference.gather_attention(q, u, h, wild, v), reference.gather_attention(q, u, h, tame, v))
