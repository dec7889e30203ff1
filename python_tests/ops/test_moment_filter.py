"""moment_filter against its reference: values, derivatives, all kinds of calls."""

import pytest
import torch
from torch.library import opcheck

import rnnkern
from python_tests.samples import (
    FILTER_OPTIONS,
    agree,
    covering_rows,
    draws,
    filter_outputs_and_gradients,
    filter_sample,
    filtered,
)
from python_tests.tiers import each_level
from rnnkern import reference
from rnnkern.ops import linear_scan, moment_filter
from rnnkern.ops._scan.moment_filter import EVERY

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
"""Tests of opcheck; the other one takes half a minute to compile the reference's second derivative."""

_operators = torch.ops.rnnkern


def check(*sizes, **options):
    """Compares random calls with the reference."""
    samples = draws(filter_sample, *sizes, **options)
    agree(moment_filter, reference.moment_filter, filter_outputs_and_gradients, samples, f"{sizes} {options}")


def calls(sample, requires_grad=False):
    """The sample's tensors, and a function of them with its other arguments."""
    leaves = {name: y.detach().requires_grad_(requires_grad) for name, y in sample.leaves().items()}

    def call(*given):
        results = filtered(moment_filter, **dict(zip(leaves, given, strict=True)), **sample.kwargs)
        return tuple(y for y in results if y is not None)

    return list(leaves.values()), call


# ---- values and gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients(dtype):
    factors = {
        "steps": [0, 1, EVERY, 2 * EVERY + 1, 150], "batch": [0, 1, 3, 17], "channels": [1, 5, 33, 200],
        "option": list(FILTER_OPTIONS),
    }  # fmt: skip
    for row in covering_rows(factors):
        option = FILTER_OPTIONS[row.pop("option")]
        check(**row, **option, dtype=dtype)


@each_level
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_simd_level(level, dtype, simd):
    simd(level)
    for channels in (1, 37, 64):
        for options in FILTER_OPTIONS.values():
            check(35, 3, channels, dtype=dtype, **options)


def test_momentum_alone_is_a_linear_scan():
    u, v0 = torch.randn(20, 3, 5), torch.randn(3, 5)
    y, v, q = filtered(moment_filter, u, v0, mu=0.8, s=0.5)
    h, last = linear_scan(torch.full((5,), 0.8), 0.5 * u, v0)
    assert q is None
    assert torch.equal(v, y[-1])
    torch.testing.assert_close((y, v), (h, last))


@pytest.mark.parametrize("option", ["adam", "momentum-reset-reverse", "reset-no state"])
def test_two_halves_are_the_whole(option):
    cut = 2 * EVERY  # so that blocks of steps, and therefore all bits, are equal
    sample = filter_sample(cut + 7, 3, 5, **FILTER_OPTIONS[option])
    y, v, q = filtered(moment_filter, *sample[:3], **sample.kwargs)
    state, found = sample[1:3], {}
    reset, reverse = sample.kwargs.get("reset"), sample.kwargs["reverse"]
    halves = (slice(0, cut), slice(cut, None))
    for half in reversed(halves) if reverse else halves:
        part = sample.kwargs | {"reset": None if reset is None else reset[half]}
        found[half.start], *state = filtered(moment_filter, sample.u[half], *state, **part)
    assert torch.equal(torch.cat([found[0], found[cut]]), y)
    assert torch.equal(state[0], v)
    assert q is None or torch.equal(state[1], q)


def test_what_packed_means():
    """Equal to each sequence alone, with its own length."""
    for name in ("packed", "packed-reset-reverse"):
        sample = filter_sample(2 * EVERY + 3, 4, 3, **FILTER_OPTIONS[name])
        sizes, reset = sample.kwargs["batch_sizes"], sample.kwargs.get("reset")
        y, v, q = filtered(moment_filter, *sample[:3], **sample.kwargs)
        begins = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
        for b in range(4):
            rows = [int(begins[t]) + b for t in range(len(sizes)) if sizes[t] > b]
            own = {"batch_sizes": None, "reset": None if reset is None else reset[: len(rows), b : b + 1]}
            given = (sample.u[rows].unsqueeze(1), sample.v0[b : b + 1], sample.q0[b : b + 1])
            alone = filtered(moment_filter, *given, **sample.kwargs | own)
            for mine, other in zip((y[rows].unsqueeze(1), v[b : b + 1], q[b : b + 1]), alone, strict=True):
                assert torch.equal(mine, other)


@pytest.mark.parametrize("layout", ["transposed", "expanded", "gaps"])
def test_any_layout(layout):
    sample = filter_sample(20, 4, 6)
    change = {
        "transposed": lambda y: y.transpose(0, -1).contiguous().transpose(0, -1),
        "expanded": lambda y: y[:1].expand_as(y),
        "gaps": lambda y: torch.stack([y, y], -1).flatten(-2)[..., ::2],
    }[layout]
    changed = sample._replace(**{name: change(y) for name, y in sample.leaves().items()})
    plain = changed._replace(**{name: y.contiguous() for name, y in changed.leaves().items()})
    found, wanted = (filter_outputs_and_gradients(moment_filter, s) for s in (changed, plain))
    for what in wanted:
        assert torch.equal(found[what], wanted[what])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("option", ["adam", "momentum"])
def test_16_bits_are_computed_in_float32_and_rounded_once(option, dtype):
    """The gradient of y is rounded too."""
    sample = filter_sample(40, 3, 9, dtype=dtype, **FILTER_OPTIONS[option])
    found = filter_outputs_and_gradients(moment_filter, sample)
    with rnnkern.use("reference"):
        again = filter_outputs_and_gradients(moment_filter, sample)
    leaves = {name: y.float().requires_grad_() for name, y in sample.leaves().items()}
    y, *states = (x for x in filtered(moment_filter, **leaves, **sample.kwargs) if x is not None)
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (y, *states)]
    upstream = [upstream[0].to(dtype).float(), *(g.float() for g in upstream[1:])]
    grads = torch.autograd.grad((y, *states), list(leaves.values()), upstream)
    wanted = dict(zip("yvq", (y, *states), strict=False))
    wanted |= {f"grad of {name}": g for name, g in zip(leaves, grads, strict=True)}
    for what, x in wanted.items():
        rounded = x.detach().to(dtype) if what in ("y", "grad of u") else x.detach()
        assert torch.equal(found[what], rounded), what
        torch.testing.assert_close(again[what], rounded)


def test_nan_stays_in_its_channel_and_ends_at_a_reset():
    u = torch.ones(40, 2, 3)
    u[2, 0, 1] = torch.nan
    reset = torch.zeros(40, 2, dtype=torch.bool)
    reset[20, 0] = True
    y, _, _ = filtered(moment_filter, u, mu=0.5, beta=0.9, reset=reset)
    wanted = torch.zeros(40, 2, 3, dtype=torch.bool)
    wanted[2:20, 0, 1] = True
    assert torch.equal(y.isnan(), wanted)


# ---- derivatives and transforms


@pytest.mark.parametrize("option", FILTER_OPTIONS)
def test_gradients_of_every_order(option):
    leaves, call = calls(filter_sample(3, 2, 2, **FILTER_OPTIONS[option]), requires_grad=True)
    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


def test_gradients_over_many_pieces():
    leaves, call = calls(filter_sample(2 * EVERY + 2, 1, 2, reset=True), requires_grad=True)
    assert torch.autograd.gradcheck(call, leaves)


@pytest.mark.parametrize("option", ["adam", "momentum"])
def test_second_gradients_where_not_all_is_asked_for(option):
    sample = filter_sample(4, 2, 2, **FILTER_OPTIONS[option])
    for at in range(len(sample.leaves())):
        for k in range(3 if sample.kwargs["beta"] else 2):
            leaves, call = calls(sample)
            chosen = leaves[at].requires_grad_()

            def one(y, at=at, k=k, leaves=leaves, call=call):
                return call(*leaves[:at], y, *leaves[at + 1 :])[k] ** 2

            assert torch.autograd.gradgradcheck(one, (chosen,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("option", ["adam", "momentum", "packed-reset-reverse"])
def test_operators_pass_torchs_own_checks(option, dtype):
    u, v0, q0, kwargs = filter_sample(EVERY + 2, dtype=dtype, **FILTER_OPTIONS[option])
    layout = (kwargs["batch_sizes"], kwargs.get("reset"), kwargs["reverse"])
    rule = (kwargs["mu"], kwargs["s"], kwargs["beta"], kwargs["eps"])
    for every in (0, EVERY):
        opcheck(_operators.moment_filter.default, (u, v0, q0, *layout, *rule, every))
    y, v, *rest = _operators.moment_filter(u, v0, q0, *layout, *rule, EVERY)
    q, kept = rest or (None, None)
    leaves = [None if x is None else x.clone().requires_grad_() for x in (y, v, q, u, v0, q0)]
    opcheck(_operators.moment_filter_backward.default, (*leaves, kept, *layout, *rule, EVERY), test_utils=CHECKS)


@pytest.mark.parametrize("option", ["adam", "packed"])
@pytest.mark.parametrize("dims", [(0, 0, 0), (0, None, None), (1, 0, None)], ids=str)
def test_members_of_vmap(dims, option):
    sample = filter_sample(4, 2, 3, **FILTER_OPTIONS[option])
    tensors = [
        y if dim is None else torch.stack([y * (1 + k) / 3 for k in range(3)], dim)
        for y, dim in zip(sample[:3], dims, strict=True)
    ]

    def gradients(*tensors):
        def loss(u, v0, q0):
            y, v, q = filtered(moment_filter, u, v0, q0, **sample.kwargs)
            return y.square().sum() + v.sum() + q.sum()

        return torch.func.grad(loss, (0, 1, 2))(*tensors)

    found = torch.vmap(gradients, dims)(*tensors)
    for k in range(3):
        one = [y if dim is None else y.select(dim, k) for y, dim in zip(tensors, dims, strict=True)]
        for mine, other in zip(found, gradients(*one), strict=True):
            torch.testing.assert_close(mine[k], other)


@pytest.mark.parametrize(("option", "rows"), [("adam", 1 + 2 * 2 / 40), ("momentum", 0)])
def test_what_the_backward_keeps(option, rows):
    """u, and v and q at each sixteenth of 40 steps; nothing for momentum alone."""
    leaves, call = calls(filter_sample(40, 2, 5, **FILTER_OPTIONS[option]), requires_grad=True)
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda y: kept.setdefault(y.data_ptr(), y), lambda y: y):
        call(*leaves)
    for state in leaves[1:]:
        kept.pop(state.data_ptr())
    assert sum(y.numel() for y in kept.values()) == rows * 40 * 2 * 5


# ---- errors, and the choice of the implementation

U, V0, SIZES = torch.zeros(3, 2, 4), torch.zeros(2, 4), torch.tensor([2, 1])


@pytest.mark.parametrize(
    ("error", "changed", "said"),
    [
        (TypeError, {"u": [1.0]}, "`u` must be a tensor, got list"),
        (TypeError, {"u": U.cfloat()}, "`u` must have one of the dtypes .* got torch.complex64"),
        (TypeError, {"state": (V0.double(), V0)}, r"`state\[0\]` must be of dtype torch.float32 like `u`, got .*64"),
        (TypeError, {"u": U.half(), "state": (V0.half(), V0)},
         r"`state\[0\]` must be of dtype torch.float32 to go with torch.float16 of `u`, got torch.float16"),
        (TypeError, {"state": (V0, V0.to("meta"))}, r"`state\[1\]` must be on cpu like `u`, got meta"),
        (TypeError, {"mu": "1"}, "`mu` must be a number, got '1'"),
        (TypeError, {"s": True}, "`s` must be a number, got True"),
        (TypeError, {"reverse": 1}, "`reverse` must be a bool, got 1"),
        (ValueError, {"mu": float("nan")}, "`mu` must be finite, got nan"),
        (ValueError, {"beta": 1.5}, r"`beta` must be in \[0, 1\], got 1.5"),
        (ValueError, {"eps": 0.0}, "`eps` must be positive, got 0.0"),
        (TypeError, {"beta": None}, r"`state` must be \(v\), a tuple of tensors, got 2 items"),
        (TypeError, {"state": V0}, r"`state` must be \(v, q\), a tuple of tensors, got Tensor"),
        (ValueError, {"u": U[0]}, r"`u` must be \(T, B, C\), got \(2, 4\)"),
        (ValueError, {"state": (V0, V0[:, 1:])}, r"`state\[1\]` must be \(B, C\) = \(2, 4\), got \(2, 3\)"),
        (ValueError, {"reset": U[:2, :, 0].bool()}, r"`reset` must be \(T, B\) = \(3, 2\), got \(2, 2\)"),
        (ValueError, {"u": U[:, 0], "state": (V0[:1], V0[:1]), "batch_sizes": SIZES}, r"B = 1, the rows of `state"),
        (ValueError, {"u": U[0], "state": None, "batch_sizes": SIZES}, "must sum to the rows of `u`, 2, got"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(error, changed, said):
    with pytest.raises(error, match=f"moment_filter: .*{said}"):
        moment_filter(**({"u": U, "state": (V0, V0), "mu": 0.5, "beta": 0.9} | changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"u": U[0]}, "`u` must be"), ({"u": U.long()}, "`u` must be"), ({"v0": V0[:, 1:]}, "`v0` must be"),
        ({"v0": V0[:1]}, "`u` must have B = 1 like the state, got 2"), ({"q0": V0.double()}, "`q0` must be"),
        ({"reset": U[0].bool()}, "`reset` must be"), ({"every": 1 << 20}, "`every` must be"),
        ({"u": U[0], "batch_sizes": SIZES}, "must sum"),
    ],
)  # fmt: skip
def test_the_operator_reads_no_memory_that_is_not_there(changed, said):
    """The operator receives unchecked arguments."""
    given = {"u": U, "v0": V0, "q0": None, "batch_sizes": None, "reset": None, "reverse": False}
    given |= {"mu": 0.5, "s": 1.0, "beta": 0.9, "eps": 0.01, "every": EVERY} | changed
    with pytest.raises(RuntimeError, match=said):
        _operators.moment_filter(*given.values())


def test_the_backward_wants_what_the_forward_kept():
    u = torch.zeros(2 * EVERY, 2, 4)
    rest = (None, None, False, 0.5, 1.0, 0.9, 0.01, EVERY)
    for kept in (None, torch.zeros(1, 2, 2, 3), torch.zeros(1, 2, 2, 4, dtype=torch.float64)):
        with pytest.raises(RuntimeError, match="`kept` must be what the forward kept"):
            _operators.moment_filter_backward(u, None, None, u, V0, None, kept, *rest)
