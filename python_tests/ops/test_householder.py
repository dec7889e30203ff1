"""householder_product: its invariants, the reference, gradients, transforms, errors."""

import pytest
import torch
from torch.library import opcheck

from python_tests.samples import agree, draws, householder_sample
from rnnkern import reference
from rnnkern.ops import householder_product

REAL = [torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
SHAPES = [(1, 1), (2, 1), (5, 5), (33, 7), (128, 128), (17, 4, 3), (40, 40, 2, 2)]
"""(N, m, ...)."""

_operators = torch.ops.rnnkern


def off_unitary(Q):
    Q = Q.detach().to(torch.complex128)
    return (Q.mH @ Q - torch.eye(Q.shape[-1])).abs().max().item()


def value_and_gradient(function, V, dtype):
    V = V.to(dtype).detach().requires_grad_()
    Q = function(V)
    upstream = torch.randn(Q.shape, generator=torch.Generator().manual_seed(1), dtype=torch.complex128) / 8
    return Q, torch.autograd.grad(Q, V, (upstream if dtype.is_complex else upstream.real).to(dtype))[0]


def judge(make):
    """Compares random products with the reference. Where N = 1 the gradient is a sum of terms that cancel to zero, so
    its rounding errors are relative to the terms: `scale`. The small upstream gradient keeps them below one."""

    def results(function, V):
        return dict(zip(("value", "gradient"), value_and_gradient(function, V, V.dtype), strict=True))

    agree(householder_product, reference.householder_product, results, draws(make), scale=1.0)


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX])
@pytest.mark.parametrize("sizes", SHAPES)
def test_value_and_gradient(sizes, dtype):
    def sample():
        V = householder_sample(*sizes, dtype=dtype)
        return V / torch.linalg.vector_norm(V, dim=-2, keepdim=True)

    judge(sample)
    Q = householder_product(householder_sample(*sizes, dtype=dtype))
    assert off_unitary(Q) <= 20 * torch.finfo(dtype).eps
    determinants = torch.linalg.det(Q) * (-1) ** sizes[1]
    assert ((determinants - 1).abs() <= 20 * Q.shape[-1] * torch.finfo(dtype).eps).all()


def test_one_reflection_by_hand():
    Q = householder_product(torch.tensor([[3.0], [4.0]]))
    torch.testing.assert_close(Q, torch.tensor([[0.28, -0.96], [-0.96, -0.28]]))


def test_the_product_is_in_the_order_of_the_columns():
    V = householder_sample(6, 3)
    one, two, three = (householder_product(V[:, k : k + 1]) for k in range(3))
    torch.testing.assert_close(householder_product(V), one @ two @ three)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("sizes", [(3, 1), (5, 5), (4, 3, 2)])
@pytest.mark.sampled
def test_gradients(sizes, dtype):
    V = torch.randn(*sizes[2:], *sizes[:2], dtype=dtype, requires_grad=True)
    assert torch.autograd.gradcheck(householder_product, V)
    assert torch.autograd.gradgradcheck(householder_product, V)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("kind", ["alike", "nearly alike", "orthogonal", "tiny", "huge"])
def test_vectors_that_are_hard(kind, dtype):
    """Linearly dependent vectors, for which U^H U is singular, and lengths whose squares overflow or underflow."""
    V = torch.randn(40, 12, dtype=torch.float64)
    if kind in ("alike", "nearly alike"):
        V[:, 1::2] = V[:, ::2] + (1e-6 if kind == "nearly alike" else 0) * torch.randn(40, 6).double()
    elif kind == "orthogonal":
        V = torch.linalg.qr(V)[0]
    scale = {"tiny": 1e-30, "huge": 1e30}.get(kind, 1.0)
    V = (V * scale).to(dtype).double()
    found, grad = value_and_gradient(householder_product, V, dtype)
    wanted, wanted_grad = value_and_gradient(reference.householder_product, V, torch.float64)
    tolerance = 30 * torch.finfo(dtype).eps
    assert (found - wanted).abs().max() <= tolerance
    assert (grad.double() - wanted_grad).norm() <= tolerance * wanted_grad.norm()
    assert off_unitary(found) <= tolerance


def test_a_vector_of_zeros_reflects_nothing():
    V = householder_sample(6, 4)
    V[:, 2] = 0
    Q, grad = value_and_gradient(householder_product, V, torch.float64)
    torch.testing.assert_close(Q, householder_product(V[:, [0, 1, 3]]))
    assert torch.equal(grad[:, 2], torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(grad, value_and_gradient(reference.householder_product, V, torch.float64)[1])
    assert torch.equal(householder_product(torch.zeros(3, 3)), torch.eye(3))


def test_what_is_not_finite_is_nan():
    for value in (float("nan"), float("inf")):
        V = torch.randn(2, 5, 3)
        V[0, 1, 1] = value
        Q = householder_product(V)
        assert Q[0].isnan().any()
        assert Q[1].isfinite().all()


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 4, 2), (4, 0), (2, 4, 0)])
def test_nothing(shape):
    V = torch.randn(shape, requires_grad=True)
    Q = householder_product(V)
    assert torch.equal(Q, torch.eye(shape[-2]).expand(*shape[:-2], -1, -1))
    Q.sum().backward()
    assert V.grad.shape == shape


def test_a_gradient_points_across_its_vector():
    V = householder_sample(9, 5, requires_grad=True)
    (grad,) = torch.autograd.grad(householder_product(V).sin().sum(), V)
    lengths = torch.linalg.vector_norm(V, dim=0) * torch.linalg.vector_norm(grad, dim=0)
    assert ((V * grad).sum(0).abs() <= 1e-13 * lengths).all()


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX])
@pytest.mark.parametrize("sizes", [(7, 4), (6, 6, 3), (4, 0), (4, 2, 0)])
def test_operators_pass_torchs_own_checks(sizes, dtype):
    V = householder_sample(*sizes, dtype=dtype)
    for training in (False, True):
        opcheck(_operators.householder_product.default, (V, training))
    Q, *kept = _operators.householder_product(V, True)
    backward = [x.clone().requires_grad_() for x in (torch.randn_like(Q), V)]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    opcheck(_operators.householder_product_backward.default, (*backward, *kept), test_utils=checks)


def test_strides_do_not_matter():
    V = householder_sample(6, 4, 3)
    wanted = value_and_gradient(householder_product, V, torch.float64)
    for other in (V.mT.contiguous().mT, V.movedim(0, -1).contiguous().movedim(-1, 0)):
        torch.testing.assert_close(value_and_gradient(householder_product, other, torch.float64), wanted)
    row = V[:1].expand(3, -1, -1)
    torch.testing.assert_close(householder_product(row)[2], householder_product(V[0]))


def test_twice_the_same_bits():
    V = householder_sample(60, 30, dtype=torch.float32)
    one, two = (value_and_gradient(householder_product, V, torch.float32) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("error", "V", "said"),
    [
        (TypeError, None, "householder_product: `V` must be a tensor, got NoneType"),
        (TypeError, torch.zeros(3, 2, dtype=torch.int64), "`V` must have one of the dtypes .* got torch.int64"),
        (ValueError, torch.zeros(3), r"`V` must be \(..., N, m\) with m <= N, got \(3,\)"),
        (ValueError, torch.zeros(2, 3, 4), r"`V` must be \(..., N, m\) with m <= N, got \(2, 3, 4\)"),
    ],
)
def test_errors_name_the_argument(error, V, said):
    with pytest.raises(error, match=said):
        householder_product(V)


def test_shapes_on_the_meta_device():
    assert householder_product(torch.empty(2, 5, 3, device="meta")).shape == (2, 5, 5)
