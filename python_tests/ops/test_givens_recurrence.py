"""givens_recurrence against its reference, which forms the matrix: values, derivatives, all kinds of calls."""

import pytest
import torch
from torch.library import opcheck

from python_tests.samples import (
    GIVENS_OPTIONS,
    agree,
    covering_rows,
    draws,
    givens_recurrence_sample,
    scan_outputs_and_gradients,
)
from python_tests.tiers import each_level
from rnnkern import reference
from rnnkern._torch_private import address_of
from rnnkern.ops import givens_recurrence
from rnnkern.ops._recurrence.complex import state_in_parts

F32, F64, C64, C128 = torch.float32, torch.float64, torch.complex64, torch.complex128
DTYPES = (F32, F64, C64, C128)
STYLES = ("tunable", "butterfly")
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")

_operators = torch.ops.rnnkern


def calls(sample, requires_grad=False):
    """The sample's tensors, and a function of them with its other arguments."""
    leaves = {name: y.detach().requires_grad_(requires_grad) for name, y in sample.leaves().items()}
    return list(leaves.values()), lambda *given: givens_recurrence(
        **dict(zip(leaves, given, strict=True)), **sample.kwargs
    )


# ---- values and gradients


def check(*sizes, change=lambda sample: sample, **options):
    """Compares random calls, which are changed, with the reference."""
    samples = map(change, draws(givens_recurrence_sample, *sizes, **options))
    agree(givens_recurrence, reference.givens_recurrence, scan_outputs_and_gradients, samples, f"{sizes} {options}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(dtype):
    factors = {
        "steps": [0, 1, 2, 40], "batch": [0, 1, 3, 17, 40], "layers": [1, 2, 7, 30],
        "size": [("tunable", 33), ("tunable", 200), ("butterfly", 64), ("butterfly", 256), ("tunable", 1),
                 ("tunable", 2), ("butterfly", 2)],
        "option": list(GIVENS_OPTIONS),
    }  # fmt: skip
    for row in covering_rows(factors):
        (style, size), option = row.pop("size"), GIVENS_OPTIONS[row.pop("option")]
        check(**row, size=size, style=style, **option, dtype=dtype)


@each_level
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_simd_level(level, dtype, simd):
    simd(level)
    for style, size in (("tunable", 37), ("butterfly", 32)):
        for option in GIVENS_OPTIONS.values():
            check(9, 21, size, 6, style=style, dtype=dtype, **option)


def test_the_equation_by_hand():
    """One pair, one layer, two steps."""
    c, s, b = torch.tensor(0.3).double().cos(), torch.tensor(0.3).double().sin(), torch.tensor([-0.1, 0.2]).double()
    u, h = torch.tensor([[[1.0, -2.0]], [[0.05, 0.5]]]).double(), torch.tensor([0.7, 0.4]).double()
    wanted = []
    for u_t in u[:, 0]:
        z = u_t + torch.stack([c * h[0] - s * h[1], s * h[0] + c * h[1]])
        h = z.sign() * (z.abs() + b).relu()
        wanted.append(h)
    found, last = givens_recurrence(u, torch.tensor([[0.3]]).double(), torch.tensor([[0.7, 0.4]]).double(), b)
    torch.testing.assert_close(found[:, 0], torch.stack(wanted))
    torch.testing.assert_close(last[0], wanted[-1])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.sampled
def test_layers_in_pieces_are_the_layers(style):
    """Vectors that are larger than the cache, with more layers than a block of layers."""
    for size, layers, dtype in ((256, 11, C128), (300 if style == "tunable" else 512, 150, F64)):
        check(2, 3, size, layers, style=style, dtype=dtype)


@pytest.mark.parametrize("dtype", [F32, C64])
def test_a_complex_number_of_zero_and_one_of_nearly_zero(dtype):
    """There is no division by |z| = 0, and for tiny |z| the direction is still exact."""
    small = torch.tensor([0.0, 1e-30, 1e-6, 1.0])

    def change(sample):
        tensors = sample.tensors
        found = sample._replace(tensors=tensors | {"state": 0 * tensors["state"], "u": tensors["u"] * small})
        assert all(x.isfinite().all() for x in scan_outputs_and_gradients(givens_recurrence, found).values())
        return found

    check(3, 2, 4, change=change, dtype=dtype)


def test_complex_numbers_without_phases_are_turned_by_real_layers():
    u, angles, h0, bias = list(givens_recurrence_sample(dtype=C128).tensors.values())[:4]
    h, last = givens_recurrence(u, angles, h0, bias)
    wanted = reference.givens_recurrence(u, angles, h0, bias)
    torch.testing.assert_close((h, last), wanted)


def test_two_halves_are_the_whole():
    for dtype, reverse in ((F64, False), (C128, True)):
        tensors, kwargs = givens_recurrence_sample(12, 5, 6, dtype=dtype, reset=True, reverse=reverse)
        h, last = givens_recurrence(**tensors, **kwargs)
        state, found = tensors["state"], {}
        for half in (slice(7, 12), slice(0, 7)) if reverse else (slice(0, 7), slice(7, 12)):
            part = tensors | {"u": tensors["u"][half], "state": state}
            found[half.start], state = givens_recurrence(**part, **kwargs | {"reset": kwargs["reset"][half]})
        torch.testing.assert_close(torch.cat([found[0], found[7]]), h)
        torch.testing.assert_close(state, last)


@pytest.mark.parametrize("layout", ["transposed", "expanded", "conjugate"])
def test_any_layout(layout):
    sample = givens_recurrence_sample(5, 4, 6, dtype=C128)
    change = {
        "transposed": lambda y: y.transpose(0, -1).contiguous().transpose(0, -1),
        "expanded": lambda y: y[:1].expand_as(y),
        "conjugate": lambda y: y.conj(),
    }[layout]
    changed = sample._replace(tensors={name: change(y) for name, y in sample.tensors.items()})
    plain = sample._replace(tensors={name: y.resolve_conj().contiguous() for name, y in changed.tensors.items()})
    found, wanted = (scan_outputs_and_gradients(givens_recurrence, s) for s in (changed, plain))
    for what in wanted:
        assert torch.equal(found[what], wanted[what])


def test_nan_stays_in_its_sequence_and_ends_at_a_reset():
    tensors, kwargs = givens_recurrence_sample(8, 3, 6, 6)
    tensors["u"][2, 0, 1] = torch.nan
    reset = torch.zeros(8, 3, dtype=torch.bool)
    reset[5, 0] = True
    h, _ = givens_recurrence(**tensors, **kwargs | {"reset": reset})
    assert h[2:5, 0].isnan().any(-1).all()
    assert not h[5:].isnan().any()
    assert not h[:, 1:].isnan().any()


# ---- derivatives and transforms


@pytest.mark.parametrize("dtype", [F64, C128])
@pytest.mark.parametrize(("option", "style"), [("reset", "butterfly"), ("packed-reset-reverse", "tunable")])
@pytest.mark.sampled
def test_gradients_of_every_order(option, style, dtype):
    sample = givens_recurrence_sample(2, 2, 4, 2, dtype=dtype, style=style, **GIVENS_OPTIONS[option])
    leaves, call = calls(sample, requires_grad=True)
    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


def test_second_gradients_where_not_all_is_asked_for():
    sample = givens_recurrence_sample(3, 2, 3, 2)
    for place in range(4):
        for k in (0, 1):
            leaves, call = calls(sample)
            leaves[place].requires_grad_()
            assert torch.autograd.gradgradcheck(
                lambda y, place=place, k=k, leaves=leaves, call=call: call(*leaves[:place], y, *leaves[place + 1 :])[k],
                (leaves[place],),
            )


@pytest.mark.parametrize("dtype", [F32, C128])
@pytest.mark.parametrize(("option", "steps"), [("reset", 4), ("packed-reset-reverse", 4), ("plain", 0)])
def test_operators_pass_torchs_own_checks(option, steps, dtype):
    tensors, kwargs = givens_recurrence_sample(steps, 3, 4, 2, dtype=dtype, **GIVENS_OPTIONS[option])
    u, h0 = (state_in_parts(x) if x.is_complex() else x for x in (tensors["u"], tensors["state"]))
    turns = tensors["angles"], tensors.get("phases"), tensors.get("diagonal_phases")
    args = (u, *turns, tensors["modrelu_bias"], h0)
    rest = (kwargs["batch_sizes"], kwargs["reset"], kwargs["reverse"], False)
    opcheck(_operators.givens_recurrence.default, (*args, *rest))
    h, last = _operators.givens_recurrence(*args, *rest)
    leaves = [None if y is None else y.clone().requires_grad_() for y in (h, last, *args, h)]
    opcheck(_operators.givens_recurrence_backward.default, (*leaves, *rest), test_utils=CHECKS)


@pytest.mark.parametrize("option", ["reset", "packed"])
@pytest.mark.parametrize("dims", [(0, None, 0, None), (0, 0, None, 0), (1, None, None, None)], ids=str)
def test_members_of_vmap(dims, option):
    sample = givens_recurrence_sample(4, 2, 4, **GIVENS_OPTIONS[option])
    tensors = [
        y if dim is None else torch.stack([y * (1 + k) / 3 for k in range(3)], dim)
        for y, dim in zip(sample.tensors.values(), dims, strict=True)
    ]

    def run(*tensors):
        return givens_recurrence(*tensors, **sample.kwargs)

    gradients = torch.func.grad(lambda *tensors: sum(x.square().sum() for x in run(*tensors)), (0, 1, 2, 3))
    for function in (run, gradients):
        found = torch.vmap(function, dims)(*tensors)
        for k in range(3):
            one = [y if dim is None else y.select(dim, k) for y, dim in zip(tensors, dims, strict=True)]
            torch.testing.assert_close(tuple(x[k] for x in found), function(*one))


def test_what_the_backward_keeps_does_not_depend_on_the_layers():
    """u and h are saved; of the layers only their angles."""
    for layers in (1, 9):
        leaves, call = calls(givens_recurrence_sample(30, 2, 6, layers), requires_grad=True)
        kept = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda y, kept=kept: kept.setdefault(address_of(y), y), lambda y: y
        ):
            h, _ = call(*leaves)
        assert set(kept) == {address_of(y) for y in (*leaves, h)}


# ---- errors, and the choice of the implementation

U, ANGLES, H0, BIAS = (torch.zeros(shape) for shape in ((3, 2, 4), (5, 2), (2, 4), (4,)))
SIZES = torch.tensor([2, 1])


@pytest.mark.parametrize(
    ("error", "changed", "said"),
    [
        (TypeError, {"u": [1.0]}, "`u` must be a tensor, got list"),
        (TypeError, {"u": U.half()}, "`u` must have one of the dtypes .* got torch.float16"),
        (TypeError, {"angles": ANGLES.double()}, "`angles` must have one of the dtypes .*float32.* got torch.float64"),
        (TypeError, {"modrelu_bias": None}, "`modrelu_bias` must be a tensor, got NoneType"),
        (TypeError, {"angles": ANGLES.to("meta")}, "`angles` must be on cpu like `u`, got meta"),
        (TypeError, {"state": H0.double()}, "`state` must be of dtype torch.float32 like `u`, got torch.float64"),
        (TypeError, {"phases": ANGLES}, "`phases` must be None for a real `u`, got a `u` of dtype torch.float32"),
        (TypeError, {"reverse": 1}, "`reverse` must be a bool, got 1"),
        (TypeError, {"reset": U}, "`reset` must be a bool tensor, got torch.float32"),
        (TypeError, {"u": U[0], "batch_sizes": SIZES.int()}, "`batch_sizes` must be an int64 tensor on the CPU"),
        (ValueError, {"style": "fft"}, "`style` must be one of .*, got 'fft'"),
        (ValueError, {"u": U[0]}, r"`u` must be \(T, B, N\), got \(2, 4\)"),
        (ValueError, {"angles": ANGLES[:, 1:]}, r"`angles` must be \(L, N // 2\) with N // 2 = 2, got \(5, 1\)"),
        (ValueError, {"state": H0[:1]}, r"`state` must be \(B, N\) = \(2, 4\), got \(1, 4\)"),
        (ValueError, {"modrelu_bias": BIAS[1:]}, r"`modrelu_bias` must be \(N,\) = \(4,\), got \(3,\)"),
        (ValueError, {"u": U[..., :3], "state": H0[:, :3], "modrelu_bias": BIAS[:3], "angles": ANGLES[:, :1],
                      "style": "butterfly"}, "N must be a power of two for the style 'butterfly', got 3"),
        (ValueError, {"reset": U[:2, :, 0].bool()}, r"`reset` must be \(T, B\) = \(3, 2\), got \(2, 2\)"),
        (ValueError, {"u": U[0], "batch_sizes": SIZES}, "`batch_sizes` must sum to the rows of `u`, 2, got a sum of 3"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(error, changed, said):
    with pytest.raises(error, match=f"givens_recurrence: .*{said}"):
        givens_recurrence(**{"u": U, "angles": ANGLES, "state": H0, "modrelu_bias": BIAS} | changed)


def test_errors_of_phases():
    turned = {"u": U + 0j, "angles": ANGLES, "state": H0 + 0j, "modrelu_bias": BIAS}
    with pytest.raises(ValueError, match=r"`phases` must be like `angles` = \(5, 2\), got \(4, 2\)"):
        givens_recurrence(**turned, phases=ANGLES[1:])
    with pytest.raises(ValueError, match=r"`diagonal_phases` must be \(N,\) = \(4,\), got \(2,\)"):
        givens_recurrence(**turned, diagonal_phases=BIAS[:2])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"u": U[..., 1:]}, "must have N columns"), ({"u": U[0]}, "`u` must be"),
        ({"h0": H0[:1]}, "`u` must have B = 1"), ({"h0": H0[:, 1:]}, "`h0` must be"),
        ({"angles": ANGLES[:, 1:]}, "`angles`"), ({"phases": ANGLES}, "must both be there"),
        ({"reset": U[0].bool()}, "`reset` must be"), ({"h0": H0.double()}, "of the dtype of `u`"),
        ({"u": U[:, 0], "batch_sizes": SIZES + 1}, "must not increase"),
        ({"u": U[0], "batch_sizes": SIZES}, "must sum"),
        ({"phases": ANGLES[1:], "diagonal": BIAS, "u": U.repeat(1, 1, 2), "h0": H0.repeat(1, 2)}, "`phases` must be"),
    ],
)  # fmt: skip
def test_the_operator_reads_no_memory_that_is_not_there(changed, said):
    """The operator receives unchecked arguments."""
    given = {"u": U, "angles": ANGLES, "phases": None, "diagonal": None, "bias": BIAS, "h0": H0, "batch_sizes": None,
             "reset": None} | changed  # fmt: skip
    with pytest.raises(RuntimeError, match=said):
        _operators.givens_recurrence(*given.values(), False, False)
