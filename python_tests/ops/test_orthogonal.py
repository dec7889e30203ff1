"""cayley, schur_weight, project_orthogonal and householder_product give orthogonal matrices, by their definitions."""

import pytest
import torch

from python_tests.ops import exact_orthogonal
from python_tests.ops.orthogonal_oracle import off_orthogonal
from python_tests.samples import draws, numbered, schur_leaves
from python_tests.samples.operators import COMPLEX, F64, REAL, draw, results
from rnnkern import ops, reference
from rnnkern.ops import cayley, householder_product, project_orthogonal, schur_weight, skew_exp
from rnnkern.testing import assert_close_over_draws


@pytest.mark.parametrize("size", [1, 2, 7, 17])
@pytest.mark.parametrize("name", ["cayley", "schur_weight"])
def test_float64_is_as_close_to_the_truth_as_the_reference(name, size):
    """By 40 digits, because in float64 the reference is only as accurate as the kernel."""

    def compared():
        call, upstream = draw(name, size, dtype=F64), torch.randn(size, size, dtype=F64)
        truth = getattr(exact_orthogonal, name)(*call.tensors.values(), upstream)

        def values(function):
            leaves = {name: x.clone().requires_grad_() for name, x in call.tensors.items()}
            V = function(**call.with_tensors(leaves).arguments())
            return V, *torch.autograd.grad(V, list(leaves.values()), upstream)

        return numbered(values(getattr(ops, name)), values(getattr(reference, name)), truth)

    assert_close_over_draws(draws(compared))


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("size", [1, 2, 17, 40])
def test_cayley(size, dtype):
    A = torch.randn(2, size, size, dtype=dtype)
    assert off_orthogonal(cayley(A)) <= 40 * torch.finfo(dtype).eps
    torch.testing.assert_close(cayley(-A), cayley(A).mT, rtol=0, atol=1e-5)


def test_cayley_of_a_plane_is_a_rotation_by_twice_the_arctangent():
    for s in (1e-4, 0.3, 2.0):
        A = torch.tensor([[0.0, 9.0], [s, 9.0]], dtype=F64)
        angle = -2 * torch.tensor(s, dtype=F64).atan()
        c, d = angle.cos(), angle.sin()
        torch.testing.assert_close(cayley(A), torch.stack([torch.stack([c, -d]), torch.stack([d, c])]))


@pytest.mark.parametrize("minus", [0, 1, 4])
def test_scaled_cayley_has_the_determinant_of_its_scale(minus):
    scale = torch.ones(3, 7, dtype=F64)
    scale[:, :minus] = -1
    A = torch.randn(3, 7, 7, dtype=F64)
    V = cayley(A, scale)
    torch.testing.assert_close(torch.linalg.det(V), torch.full((3,), (-1.0) ** minus, dtype=F64))
    torch.testing.assert_close(V, cayley(A, scale[0]))
    torch.testing.assert_close(V, reference.cayley(A, scale))
    assert off_orthogonal(V) <= 1e-13


@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_without_t_its_eigenvalues_are_those_of_its_blocks(size):
    P, theta, gamma, T = (x.double() for x in schur_leaves(size))
    W = schur_weight(P, theta, gamma, T.triu())
    moduli = torch.cat([gamma[: size // 2].repeat_interleave(2), gamma[size // 2 :]])
    torch.testing.assert_close(torch.linalg.eigvals(W).abs().sort().values, moduli.sort().values)
    trace = 2 * (gamma[: size // 2] * theta.cos()).sum() + gamma[size // 2 :].sum()
    torch.testing.assert_close(W.trace(), trace)
    torch.testing.assert_close(schur_weight(P, theta, gamma, T) - W, P @ T.tril(-1) @ P.mT)


def test_schur_weight_turns_by_its_angle():
    angle = torch.tensor([0.3], dtype=F64)
    W = schur_weight(torch.eye(2, dtype=F64), angle, torch.ones(1, dtype=F64), torch.zeros(2, 2).double())
    c, s = angle.cos(), angle.sin()
    torch.testing.assert_close(W, torch.stack([torch.cat([c, -s]), torch.cat([s, c])]))


@pytest.mark.parametrize("dtype", COMPLEX)
def test_project_orthogonal_squares_the_error(dtype):
    V = skew_exp(torch.randn(2, 30, 30, dtype=dtype))
    B = V + 1e-4 * torch.randn_like(V)
    rounding = 20 * torch.finfo(dtype).eps
    errors = [off_orthogonal(project_orthogonal(B, steps=steps)) for steps in (0, 1, 2)]
    assert errors[1] <= 30 * errors[0] ** 2 + rounding  # the largest element is up to N times smaller than the 2-norm
    assert errors[2] <= 30 * errors[1] ** 2 + rounding
    assert torch.equal(project_orthogonal(B), project_orthogonal(B, steps=2))


def test_project_orthogonal_finds_the_nearest():
    B = skew_exp(torch.randn(9, 9, dtype=F64)) + 0.02 * torch.randn(9, 9, dtype=F64)
    U, _, Vh = torch.linalg.svd(B)
    torch.testing.assert_close(project_orthogonal(B, steps=4), U @ Vh)
    assert torch.autograd.gradcheck(project_orthogonal, B.requires_grad_())


# ---- householder_product


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (5, 5), (33, 7), (128, 128), (17, 4, (3,))], ids=str)
def test_products_of_reflections_are_orthogonal(sizes, dtype):
    V = draw("householder_product", *sizes, dtype=dtype).tensors["V"]
    Q = householder_product(V * torch.logspace(-3, 3, sizes[1]))
    assert off_orthogonal(Q) <= 20 * torch.finfo(dtype).eps
    determinants = torch.linalg.det(Q) * (-1) ** sizes[1]
    assert ((determinants - 1).abs() <= 20 * Q.shape[-1] * torch.finfo(dtype).eps).all()


def test_one_reflection_by_hand():
    Q = householder_product(torch.tensor([[3.0], [4.0]]))
    torch.testing.assert_close(Q, torch.tensor([[0.28, -0.96], [-0.96, -0.28]]))


def test_the_product_is_in_the_order_of_the_columns():
    V = torch.randn(6, 3, dtype=F64)
    one, two, three = (householder_product(V[:, k : k + 1]) for k in range(3))
    torch.testing.assert_close(householder_product(V), one @ two @ three)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("kind", ["alike", "nearly alike", "orthogonal", "tiny", "huge"])
def test_vectors_that_are_hard(kind, dtype):
    """Linearly dependent vectors, for which U^H U is singular, and lengths whose squares overflow or underflow."""
    V = torch.randn(40, 12, dtype=F64)
    if kind in ("alike", "nearly alike"):
        V[:, 1::2] = V[:, ::2] + (1e-6 if kind == "nearly alike" else 0) * torch.randn(40, 6).double()
    elif kind == "orthogonal":
        V = torch.linalg.qr(V)[0]
    scale = {"tiny": 1e-30, "huge": 1e30}.get(kind, 1.0)
    V = (V * scale).to(dtype).double()
    call = draw("householder_product")
    found, grad = results(householder_product, call._replace(tensors={"V": V.to(dtype)})).values()
    wanted, wanted_grad = results(reference.householder_product, call._replace(tensors={"V": V})).values()
    tolerance = 30 * torch.finfo(dtype).eps
    assert (found - wanted).abs().max() <= tolerance
    assert (grad.double() - wanted_grad).norm() <= tolerance * wanted_grad.norm()
    assert off_orthogonal(found) <= tolerance


def test_a_vector_of_zeros_reflects_nothing():
    call = draw("householder_product", 6, 4)
    V = call.tensors["V"]
    V[:, 2] = 0
    Q, grad = results(householder_product, call).values()
    torch.testing.assert_close(Q, householder_product(V[:, [0, 1, 3]]))
    assert torch.equal(grad[:, 2], torch.zeros(6, dtype=F64))
    torch.testing.assert_close(grad, results(reference.householder_product, call)["grad of V"])
    assert torch.equal(householder_product(torch.zeros(3, 3)), torch.eye(3))


def test_what_is_not_finite_is_nan():
    for value in (float("nan"), float("inf")):
        V = torch.randn(2, 5, 3)
        V[0, 1, 1] = value
        Q = householder_product(V)
        assert Q[0].isnan().any()
        assert Q[1].isfinite().all()


def test_a_gradient_points_across_its_vector():
    V = torch.randn(9, 5, dtype=F64, requires_grad=True)
    (grad,) = torch.autograd.grad(householder_product(V).sin().sum(), V)
    lengths = torch.linalg.vector_norm(V, dim=0) * torch.linalg.vector_norm(grad, dim=0)
    assert ((V * grad).sum(0).abs() <= 1e-13 * lengths).all()
