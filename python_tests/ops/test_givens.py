"""givens_product: its invariants, the reference, gradients, SIMD levels, threads, transforms, errors."""

import math

import pytest
import torch
from torch.library import opcheck

from python_tests.samples import agree, draws, givens_sample
from python_tests.tiers import each_level
from rnnkern import reference
from rnnkern.ops import givens_product

DTYPES = [torch.float32, torch.float64]
F64 = torch.float64
SAMPLES = [
    ("tunable", (2, 1, 1)),
    ("tunable", (7, 5, 6)),
    ("tunable", (33, 40, 100)),
    ("tunable", (64, 3, 65, 2)),
    ("butterfly", (2, 3, 4)),
    ("butterfly", (32, 5, 33)),
    ("butterfly", (128, 9, 17, 2, 2)),
]
"""Style, N, L, R and the batch shape."""

_operators = torch.ops.rnnkern


def results(function, dtype, angles, x=None, **options):
    """The value and all gradients."""
    leaves = [t.to(dtype).detach().requires_grad_() for t in (angles, x) if t is not None]
    y = function(*leaves, **options)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=F64).to(dtype)
    return y, *torch.autograd.grad(y, leaves, upstream)


def judge(*sizes, dtype, style):
    """Compares random products, with vectors and alone, with the reference."""

    def compared(function, sample):
        angles, x = sample
        alone = results(function, angles.dtype, angles, style=style, size=sizes[0])
        found = *alone, *results(function, angles.dtype, angles, x, style=style)
        return {f"result {k}": y for k, y in enumerate(found)}

    samples = draws(givens_sample, *sizes, dtype=dtype)
    agree(givens_product, reference.givens_product, compared, samples, f"{sizes} {style}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("style", "sizes"), SAMPLES)
def test_value_and_gradients(style, sizes, dtype):
    judge(*sizes, dtype=dtype, style=style)


@each_level
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", ["tunable", "butterfly"])
def test_every_simd_level(level, dtype, style, simd):
    simd(level)
    size = 64 if style == "butterfly" else 71
    judge(size, 9, 67, 2, dtype=dtype, style=style)


def test_a_plane_by_hand():
    angles = torch.tensor([[0.3]], dtype=F64)
    c, s = math.cos(0.3), math.sin(0.3)
    torch.testing.assert_close(givens_product(angles), torch.tensor([[c, -s], [s, c]], dtype=F64))
    torch.testing.assert_close(
        givens_product(angles, torch.tensor([1.0, 2.0]).double()).tolist(), [c - 2 * s, s + 2 * c]
    )


def pairs_of(style, size, layer):
    """The entries that a layer changes, according to its matrix."""
    angles = torch.zeros(layer + 1, size // 2, dtype=F64)
    angles[layer] = 0.5
    W = givens_product(angles, style=style, size=size)
    return [(b, a) for a, b in W.tril(-1).nonzero().tolist()]


def test_who_is_paired():
    assert pairs_of("tunable", 6, 0) == [(0, 1), (2, 3), (4, 5)]
    assert pairs_of("tunable", 6, 1) == pairs_of("tunable", 6, 3) == [(1, 2), (3, 4)]
    assert pairs_of("tunable", 5, 1) == [(1, 2), (3, 4)]
    assert pairs_of("butterfly", 8, 0) == pairs_of("butterfly", 8, 3) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert pairs_of("butterfly", 8, 1) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert pairs_of("butterfly", 8, 2) == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize(("style", "sizes"), SAMPLES)
def test_the_matrix_is_a_rotation_and_the_product_is_its(style, sizes):
    angles, x = givens_sample(*sizes)
    W = givens_product(angles, style=style, size=sizes[0])
    eye = torch.eye(sizes[0], dtype=F64)
    assert (W.mT @ W - eye).abs().max() < 1e-13
    torch.testing.assert_close(torch.linalg.det(W), torch.ones(W.shape[:-2], dtype=F64))
    torch.testing.assert_close(givens_product(angles, x, style=style), x @ W.mT)


def test_after_as_many_layers_every_entry_sees_every_other():
    for style, size, layers in (("butterfly", 16, 4), ("tunable", 7, 7)):
        W = givens_product(torch.full((layers, size // 2), 0.7, dtype=F64), style=style, size=size)
        assert W.abs().min() > 1e-4
        before = givens_product(torch.full((layers - 1, size // 2), 0.7, dtype=F64), style=style, size=size)
        assert (before == 0).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_thousand_layers_stay_orthogonal(dtype):
    W = givens_product(torch.randn(1000, 32, dtype=dtype)).double()
    assert (W.mT @ W - torch.eye(64)).abs().max() <= 150 * torch.finfo(dtype).eps


def test_what_the_backward_rotates_back_is_what_came():
    """Rounding errors of 1,000 layers, forward and back."""
    judge(40, 1000, 20, dtype=torch.float32, style="tunable")


@pytest.mark.parametrize(("style", "size"), [("tunable", 5), ("tunable", 4), ("butterfly", 4)])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.sampled
def test_gradients(style, size, batch):
    angles, x = givens_sample(size, 3, 2, *batch, requires_grad=True)
    for function, leaves in (
        (lambda angles, x: givens_product(angles, x, style=style), (angles, x)),
        (lambda angles: givens_product(angles, style=style, size=size), (angles,)),
        (lambda angles: givens_product(angles, x.detach(), style=style), (angles,)),
        (lambda x: givens_product(angles.detach(), x, style=style), (x,)),
    ):
        assert torch.autograd.gradcheck(function, leaves)
        assert torch.autograd.gradgradcheck(function, leaves)


def test_an_angle_that_turns_nobody_has_no_gradient():
    angles = torch.randn(2, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(givens_product(angles).sin().sum(), angles)
    assert grad[1, 2] == 0
    assert (grad != 0).sum() == 5


@pytest.mark.parametrize("butterfly", [False, True])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("sizes", [(8, 4, 6), (4, 3, 5, 3), (4, 0, 5), (4, 3, 0), (4, 3, 5, 0)])
def test_operators_pass_torchs_own_checks(sizes, columns, butterfly):
    angles, x = givens_sample(*sizes, dtype=torch.float32)
    x = x.mT.contiguous() if columns else x
    opcheck(_operators.givens_product.default, (angles, x, columns, butterfly))
    y = _operators.givens_product(angles, x, columns, butterfly)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for needs_x in (False, True):
        backward = [t.clone().requires_grad_() for t in (torch.randn_like(y), angles, y)]
        call = (*backward, columns, butterfly, needs_x)
        opcheck(_operators.givens_product_backward.default, call, test_utils=checks)


def test_shapes_and_strides():
    angles, x = givens_sample(6, 4, 12)
    wanted = givens_product(angles, x)
    assert torch.equal(givens_product(angles, x.reshape(2, 3, 2, 6)), wanted.reshape(2, 3, 2, 6))
    assert torch.equal(givens_product(angles, x[0]), wanted[0])
    assert torch.equal(givens_product(angles.mT.contiguous().mT, x.mT.contiguous().mT), wanted)
    assert torch.equal(givens_product(angles, x[:1].expand(5, 6)), wanted[:1].expand(5, 6))
    assert givens_product(angles, x[:0]).shape == (0, 6)
    assert torch.equal(givens_product(angles[:0], x), x)
    assert torch.equal(givens_product(torch.zeros(3, 0), size=1), torch.ones(1, 1))


@pytest.mark.parametrize(
    ("error", "args", "options", "said"),
    [
        (TypeError, (None,), {}, "givens_product: `angles` must be a tensor, got NoneType"),
        (TypeError, (torch.zeros(2, 3) + 0j,), {}, "`angles` must have one of the dtypes .* got torch.complex64"),
        (ValueError, (torch.zeros(3),), {}, r"`angles` must be \(..., L, N // 2\), got \(3,\)"),
        (ValueError, (torch.zeros(2, 3),), {"style": "fft"}, "`style` must be one of .*, got 'fft'"),
        (ValueError, (torch.zeros(2, 3),), {"size": 8}, "`size` must be 6 or 7 .*, got 8"),
        (ValueError, (torch.zeros(2, 3),), {"style": "butterfly"}, "N must be a power of two .*, got 6"),
        (
            TypeError,
            (torch.zeros(2, 3), torch.zeros(6).double()),
            {},
            "`x` must be of dtype torch.float32 like `angles`",
        ),
        (ValueError, (torch.zeros(2, 3), torch.zeros(4, 5)), {}, r"`x` must be .* N // 2 = 3 .*, got \(4, 5\)"),
        (ValueError, (torch.zeros(2, 3), torch.zeros(6)), {"size": 7}, "`size` must be N = 6 of `x`, or None, got 7"),
        (
            ValueError,
            (torch.zeros(4, 2, 3), torch.zeros(5, 6)),
            {},
            r"`x` must be \(..., R, N\) with the batch of `angles`, \(4,\), got \(5, 6\)",
        ),
    ],
)
def test_errors_name_the_argument(error, args, options, said):
    with pytest.raises(error, match=said):
        givens_product(*args, **options)


def test_shapes_on_the_meta_device():
    angles = torch.empty(2, 5, 3, device="meta")
    assert givens_product(angles, size=7).shape == (2, 7, 7)
    assert givens_product(angles, torch.empty(2, 4, 6, device="meta")).shape == (2, 4, 6)
