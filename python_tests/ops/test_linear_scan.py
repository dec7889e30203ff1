"""linear_scan against its reference: values, derivatives, all kinds of calls."""

import pytest
import torch
from torch.library import opcheck

import rnnkern
from python_tests.samples import (
    SCAN_OPTIONS,
    agree,
    covering_rows,
    draws,
    scan_outputs_and_gradients,
    scan_sample,
    scan_samples,
)
from python_tests.tiers import each_level
from rnnkern import reference
from rnnkern.ops import linear_scan

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
"""Tests of opcheck; the other one takes half a minute to compile the reference's second derivative."""

_operators = torch.ops.rnnkern


def check(*sizes, **options):
    """Compares random calls with the reference."""
    samples = draws(scan_sample, *sizes, **options)
    agree(linear_scan, reference.linear_scan, scan_outputs_and_gradients, samples, f"{sizes} {options}")


def calls(sample, requires_grad=False):
    """The sample's tensors, and a function of them with its other arguments."""
    leaves = {name: y.detach().requires_grad_(requires_grad) for name, y in sample.leaves().items()}
    return list(leaves.values()), lambda *given: linear_scan(**dict(zip(leaves, given, strict=True)), **sample.kwargs)


# ---- values and gradients


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.sampled
def test_values_and_gradients(dtype):
    factors = {
        "steps": [0, 1, 2, 63, 300], "batch": [0, 1, 3, 17], "channels": [1, 5, 33, 128, 200],
        "option": list(SCAN_OPTIONS),
    }  # fmt: skip
    for row in covering_rows(factors):
        option = SCAN_OPTIONS[row.pop("option")]
        check(**row, **option, dtype=dtype)


@each_level
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_simd_level(level, dtype, simd):
    simd(level)
    for channels in (1, 37, 64):
        for option in SCAN_OPTIONS.values():
            check(21, channels=channels, dtype=dtype, **option)


def test_a_reference_in_closed_form():
    """For constant a and x, h_T = (1 - a^T) / (1 - a) x; its derivative with respect to a is known too."""
    a = torch.tensor([0.5, -0.25, 1.5], dtype=torch.float64, requires_grad=True)
    h, last = linear_scan(a, torch.ones(10, 1, 3, dtype=torch.float64))
    torch.testing.assert_close(last[0], (1 - a**10) / (1 - a))
    (found,) = torch.autograd.grad(last.sum(), a)
    torch.testing.assert_close(found, sum(t * a ** (t - 1) for t in range(1, 10)))
    assert torch.equal(h[-1], last)


@pytest.mark.parametrize("option", SCAN_OPTIONS)
def test_two_halves_are_the_whole(option):
    sample = scan_sample(12, 3, 5, **SCAN_OPTIONS[option])
    if sample.kwargs["batch_sizes"] is not None:
        pytest.skip("packed sequences are not cut by steps alone")
    h, last = linear_scan(*sample[:3], **sample.kwargs)
    state, found = sample.state, {}
    reset, reverse = sample.kwargs.get("reset"), sample.kwargs["reverse"]
    for half in (slice(7, 12), slice(0, 7)) if reverse else (slice(0, 7), slice(7, 12)):
        a = sample.a if sample.a.dim() == 1 else sample.a[half]
        part = {"reset": None if reset is None else reset[half], "reverse": reverse}
        found[half.start], state = linear_scan(a, sample.x[half], state, **part)
    assert torch.equal(torch.cat([found[0], found[7]]), h)
    assert torch.equal(state, last)


def test_what_packed_means():
    """Equal to each sequence alone, with its own length."""
    for name in ("packed", "packed-reverse", "packed-reset-reverse", "per step-packed"):
        sample = scan_sample(9, 4, 3, **SCAN_OPTIONS[name])
        sizes, reverse = sample.kwargs["batch_sizes"], sample.kwargs["reverse"]
        h, last = linear_scan(*sample[:3], **sample.kwargs)
        begins = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
        for b in range(4):
            rows = [int(begins[t]) + b for t in range(9) if sizes[t] > b]
            a = sample.a if sample.a.dim() == 1 else sample.a[rows].unsqueeze(1)
            reset = sample.kwargs.get("reset")
            reset = None if reset is None else reset[: len(rows), b : b + 1]
            alone = linear_scan(a, sample.x[rows].unsqueeze(1), sample.state[b : b + 1], reset=reset, reverse=reverse)
            assert torch.equal(h[rows].unsqueeze(1), alone[0])
            assert torch.equal(last[b : b + 1], alone[1])


@pytest.mark.parametrize("layout", ["transposed", "expanded", "gaps", "conjugate"])
def test_any_layout(layout):
    sample = scan_sample(5, 4, 6, dtype=torch.complex128, per_step=True)
    change = {
        "transposed": lambda y: y.transpose(0, -1).contiguous().transpose(0, -1),
        "expanded": lambda y: y[:1].expand_as(y),
        "gaps": lambda y: torch.stack([y, y], -1).flatten(-2)[..., ::2],
        "conjugate": lambda y: y.conj(),
    }[layout]
    changed = sample._replace(a=change(sample.a), x=change(sample.x), state=change(sample.state))
    plain = changed._replace(**{name: y.resolve_conj().contiguous() for name, y in changed.leaves().items()})
    found, wanted = (scan_outputs_and_gradients(linear_scan, s) for s in (changed, plain))
    for what in wanted:
        assert torch.equal(found[what], wanted[what])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_computed_in_float32_and_rounded_once(dtype):
    sample = scan_sample(40, 3, 9, dtype=dtype)
    found, wide = (scan_outputs_and_gradients(linear_scan, s) for s in (sample, sample.to(torch.float32)))
    for what in ("h", "final state"):
        assert torch.equal(found[what], wide[what].to(dtype))
    check(40, 3, 9, dtype=dtype)
    with rnnkern.use("reference"):
        check(40, 3, 9, dtype=dtype)


def test_long_sums_of_a_constant_keep_their_precision():
    sample = scan_sample(4000, 2, 8, dtype=torch.float32)
    agree(linear_scan, reference.linear_scan, scan_outputs_and_gradients, [sample])


def test_the_final_state_alone():
    for name, sample in scan_samples():
        leaves, call = calls(sample, requires_grad=True)
        _, last = call(*leaves)
        kwargs = sample.kwargs | {"return_sequence": False}
        with torch.no_grad():
            none, alone = linear_scan(*sample[:3], **kwargs)
        assert none is None
        assert torch.equal(alone, last), name
        again = linear_scan(**dict(zip(sample.leaves(), leaves, strict=True)), **kwargs)[1]
        for x, y in zip(*(torch.autograd.grad(z.square().sum(), leaves) for z in (again, last)), strict=True):
            assert torch.equal(x, y)


def test_nan_stays_in_its_channel_and_ends_at_a_reset():
    x = torch.ones(8, 2, 3)
    x[2, 0, 1] = torch.nan
    reset = torch.zeros(8, 2, dtype=torch.bool)
    reset[5, 0] = True
    h, _ = linear_scan(torch.full((3,), 0.5), x, reset=reset)
    wanted = torch.zeros(8, 2, 3, dtype=torch.bool)
    wanted[2:5, 0, 1] = True
    assert torch.equal(h.isnan(), wanted)


# ---- derivatives and transforms


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("option", SCAN_OPTIONS)
@pytest.mark.sampled
def test_gradients_of_every_order(option, dtype):
    leaves, call = calls(scan_sample(3, 2, 2, dtype=dtype, **SCAN_OPTIONS[option]), requires_grad=True)
    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("option", ["constant", "per step-packed-reset-reverse-no h0"])
def test_second_gradients_where_not_all_is_asked_for(option):
    sample = scan_sample(4, 2, 3, **SCAN_OPTIONS[option])
    for wanted in sample.leaves():
        for k in (0, 1):
            leaves, call = calls(sample)
            chosen = leaves[list(sample.leaves()).index(wanted)].requires_grad_()
            assert torch.autograd.gradgradcheck(
                lambda y, k=k, leaves=leaves, call=call, chosen=chosen: (
                    call(*(y if z is chosen else z for z in leaves))[k] ** 2
                ),
                (chosen,),
            )


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
@pytest.mark.parametrize("option", SCAN_OPTIONS)
@pytest.mark.sampled
def test_operators_pass_torchs_own_checks(option, dtype):
    a, x, h0, kwargs = scan_sample(dtype=dtype, **SCAN_OPTIONS[option])
    if h0 is None and kwargs["batch_sizes"] is not None:
        h0 = x.new_zeros(int(kwargs["batch_sizes"][0]), x.shape[-1])
    rest = (kwargs["batch_sizes"], kwargs.get("reset"), kwargs["reverse"])
    for sequence in (True, False):
        opcheck(_operators.linear_scan.default, (a, x, h0, *rest, sequence))
    h, last = _operators.linear_scan(a, x, h0, *rest, True)
    leaves = [None if y is None else y.clone().requires_grad_() for y in (h, last, a, h0, h)]
    for needs_a in (True, False):
        opcheck(_operators.linear_scan_backward.default, (*leaves, *rest, needs_a), test_utils=CHECKS)


@pytest.mark.parametrize("option", ["constant", "per step-reset", "packed-reverse"])
@pytest.mark.parametrize("dims", [(0, 0, 0), (None, 0, None), (0, None, None), (None, 1, 0)], ids=str)
def test_members_of_vmap(dims, option):
    sample = scan_sample(4, 2, 3, **SCAN_OPTIONS[option])
    tensors = [
        y if dim is None else torch.stack([y * (1 + k) / 3 for k in range(3)], dim)
        for y, dim in zip(sample[:3], dims, strict=True)
    ]

    def gradients(*tensors):
        def loss(a, x, h0):
            h, last = linear_scan(a, x, h0, **sample.kwargs)
            return h.square().sum() + last.sum()

        return torch.func.grad(loss, (0, 1, 2))(*tensors)

    found = torch.vmap(gradients, dims)(*tensors)
    for k in range(3):
        one = [y if dim is None else y.select(dim, k) for y, dim in zip(tensors, dims, strict=True)]
        for mine, other in zip(found, gradients(*one), strict=True):
            torch.testing.assert_close(mine[k], other)


def test_resets_that_differ_from_member_to_member():
    a, x, h0, _ = scan_sample(4, 2, 3)
    reset = torch.rand(5, 4, 2) < 0.5
    found = torch.vmap(lambda reset: linear_scan(a, x, h0, reset=reset)[0])(reset)
    for k in range(5):
        assert torch.equal(found[k], linear_scan(a, x, h0, reset=reset[k])[0])


def test_what_the_backward_keeps():
    """h, which exists anyway; x is not saved."""
    a, x, h0, _ = scan_sample(30, 2, 5, requires_grad=True)
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda y: kept.setdefault(y.data_ptr(), y), lambda y: y):
        h, _ = linear_scan(a, x, h0)
    assert set(kept) == {y.data_ptr() for y in (a, h0, h)}


# ---- errors, and the choice of the implementation

A, X, H0, SIZES = torch.zeros(4), torch.zeros(3, 2, 4), torch.zeros(2, 4), torch.tensor([2, 1])


@pytest.mark.parametrize(
    ("error", "changed", "said"),
    [
        (TypeError, {"x": [1.0]}, "`x` must be a tensor, got list"),
        (TypeError, {"x": X.long()}, "`x` must have one of the dtypes .* got torch.int64"),
        (TypeError, {"a": 0.5}, "`a` must be a tensor, got float"),
        (TypeError, {"a": A.cdouble()}, "`a` must be of dtype torch.float32 like `x`, got torch.complex128"),
        (TypeError, {"state": H0.double()}, "`state` must be of dtype torch.float32 like `x`, got torch.float64"),
        (TypeError, {"a": A.to("meta")}, "`a` must be on cpu like `x`, got meta"),
        (TypeError, {"reverse": 1}, "`reverse` must be a bool, got 1"),
        (TypeError, {"return_sequence": None}, "`return_sequence` must be a bool, got None"),
        (TypeError, {"reset": X}, "`reset` must be a bool tensor, got torch.float32"),
        (TypeError, {"reset": X[..., 0].bool().to("meta")}, "`reset` must be on cpu like `x`, got meta"),
        (TypeError, {"x": X[0], "batch_sizes": SIZES.int()}, "`batch_sizes` must be an int64 tensor on the CPU"),
        (TypeError, {"x": X[0], "state": None, "batch_sizes": [2]}, "`batch_sizes` must be an int64 tensor on the CPU"),
        (ValueError, {"x": X[0]}, r"`x` must be \(T, B, C\), got \(2, 4\)"),
        (ValueError, {"batch_sizes": SIZES}, r"`x` must be \(sum of batch_sizes, C\) when .*, got \(3, 2, 4\)"),
        (ValueError, {"a": A[1:]}, r"`a` must be \(C,\) = \(4,\) or broadcast to .* \(3, 2, 4\), got \(3,\)"),
        (ValueError, {"a": X[:2]}, r"`a` must be .* got \(2, 2, 4\)"),
        (ValueError, {"state": H0[:1]}, r"`state` must be \(B, C\) = \(2, 4\), got \(1, 4\)"),
        (ValueError, {"reset": X[:2, :, 0].bool()}, r"`reset` must be \(T, B\) = \(3, 2\), got \(2, 2\)"),
        (ValueError, {"x": X[:, 0], "state": H0[0], "batch_sizes": SIZES}, r"`state` must be \(B, C\) = .* got \(4,\)"),
        (ValueError, {"x": X[0], "batch_sizes": SIZES}, "`batch_sizes` must sum to the rows of `x`, 2, got a sum of 3"),
        (ValueError, {"x": X[:, 0], "batch_sizes": SIZES.flip(0)}, "`batch_sizes` must not increase"),
        (
            ValueError,
            {"x": X[:, 0], "state": H0[:1], "batch_sizes": SIZES},
            "at most B = 1, the rows of `state`",
        ),
    ],
)
def test_errors_name_the_argument(error, changed, said):
    with pytest.raises(error, match=f"linear_scan: .*{said}"):
        linear_scan(**({"a": A, "x": X, "state": H0} | changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"a": A[1:]}, "`a` must be"), ({"x": X[0]}, "`x` must be"), ({"h0": H0[:, 1:]}, "`h0` must be"),
        ({"h0": H0[:1]}, "`x` must have B = 1 like the state, got 2"), ({"reset": X[0].bool()}, "`reset` must be"),
        ({"a": A.half()}, "`a` must be"), ({"x": X[:, 0], "batch_sizes": SIZES + 1}, "must not increase"),
        ({"x": X[0], "batch_sizes": SIZES}, "must sum"),
    ],
)  # fmt: skip
def test_the_operator_reads_no_memory_that_is_not_there(changed, said):
    """The operator receives unchecked arguments."""
    given = {"a": A, "x": X, "h0": H0, "batch_sizes": None, "reset": None} | changed
    with pytest.raises(RuntimeError, match=said):
        _operators.linear_scan(*given.values(), False, True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("option", SCAN_OPTIONS)
def test_the_references_backward_is_its_own_gradient(option, dtype):
    sample = scan_sample(dtype=dtype, **SCAN_OPTIONS[option]).to(torch.float64)
    a, _, h0, kwargs = sample
    wanted = scan_outputs_and_gradients(reference.linear_scan, sample, seed=3)
    generator = torch.Generator().manual_seed(3)
    h, last = wanted["h"], wanted["final state"]
    upstream = [
        torch.randn(*y.shape, 2 if y.is_complex() else 1, generator=generator, dtype=torch.float64) for y in (h, last)
    ]
    upstream = [torch.view_as_complex(g) if h.is_complex() else g.squeeze(-1) for g in upstream]
    zeros = torch.zeros_like(last)
    dx, dh0, da = reference.linear_scan_backward(*upstream, a, zeros if h0 is None else h0, h, **kwargs)
    found = {"grad of a": da, "grad of x": dx} | ({} if h0 is None else {"grad of state": dh0})
    for name, y in found.items():
        torch.testing.assert_close(y, wanted[name], rtol=1e-12, atol=1e-12)


def test_real_and_complex_go_together():
    a, x, state, kwargs = scan_sample(6, 2, 3, packed=True, dtype=torch.complex128)
    for given in ((a, x.real, state), (a.real, x, state)):
        leaves = [y.clone().requires_grad_() for y in given]
        whole = [y.detach().to(torch.complex128).requires_grad_() for y in leaves]
        results, wanted = (linear_scan(*tensors, **kwargs) for tensors in (leaves, whole))
        assert all(map(torch.equal, results, wanted))
        upstream = torch.randn_like(results[0])
        gradients = torch.autograd.grad(results[0], leaves, upstream)
        for gradient, other in zip(gradients, torch.autograd.grad(wanted[0], whole, upstream), strict=True):
            torch.testing.assert_close(gradient, other if gradient.is_complex() else other.real)


@pytest.mark.parametrize("shape", [(6, 1, 3), (1, 2, 3), (1, 1, 3)])
def test_factors_broadcast(shape):
    a, x = torch.rand(shape, dtype=torch.float64), torch.randn(6, 2, 3, dtype=torch.float64)
    assert torch.equal(linear_scan(a, x)[0], linear_scan(a.expand(6, 2, 3).contiguous(), x)[0])
    torch.autograd.gradcheck(lambda a: linear_scan(a, x), a.requires_grad_())
