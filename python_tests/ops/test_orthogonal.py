"""cayley, schur_weight and project_orthogonal: their invariants, the reference, gradients, errors."""

import pytest
import torch
from torch.library import opcheck

from python_tests.ops import exact_orthogonal
from python_tests.samples import draws, numbered, schur_leaves
from python_tests.tiers import each_level
from rnnkern import ops, reference
from rnnkern.ops import cayley, project_orthogonal, schur_weight, skew_exp
from rnnkern.testing import assert_close_over_draws

DTYPES = [torch.float32, torch.float64]

_operators = torch.ops.rnnkern


def off_orthogonal(V):
    V = V.detach().to(torch.complex128 if V.is_complex() else torch.float64)
    return (V.mH @ V - torch.eye(V.shape[-1])).abs().max().item()


def judge(name, make, dtype):
    """Compares value and gradients of random calls with the reference; the truth has twice the digits of float64."""

    def compared(leaves):
        leaves = [x.to(dtype) for x in leaves]
        upstream = torch.randn(leaves[0].shape, dtype=dtype)

        def results(function):
            own = [x.detach().requires_grad_() for x in leaves]
            V = function(*own)
            return V, *torch.autograd.grad(V, own, upstream)

        truth = getattr(exact_orthogonal, name)(*(x.double() for x in (*leaves, upstream)))
        found, naive = (results(getattr(where, name)) for where in (ops, reference))
        return numbered(found, naive, truth)

    assert_close_over_draws(map(compared, draws(make)), f"{name}: ")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 17, 17), (2, 2, 40, 40)])
def test_cayley(shape, dtype):
    A = torch.randn(shape)
    judge("cayley", lambda: [torch.randn(shape)], dtype)
    assert off_orthogonal(cayley(A.to(dtype))) <= 40 * torch.finfo(dtype).eps
    torch.testing.assert_close(cayley(-A), cayley(A).mT, rtol=0, atol=1e-5)


def test_cayley_of_a_plane_is_a_rotation_by_twice_the_arctangent():
    for s in (1e-4, 0.3, 2.0):
        A = torch.tensor([[0.0, 9.0], [s, 9.0]], dtype=torch.float64)
        angle = -2 * torch.tensor(s, dtype=torch.float64).atan()
        c, d = angle.cos(), angle.sin()
        torch.testing.assert_close(cayley(A), torch.stack([torch.stack([c, -d]), torch.stack([d, c])]))


@pytest.mark.parametrize("minus", [0, 1, 4])
def test_scaled_cayley_has_the_determinant_of_its_scale(minus):
    scale = torch.ones(3, 7, dtype=torch.float64)
    scale[:, :minus] = -1
    A = torch.randn(3, 7, 7, dtype=torch.float64, requires_grad=True)
    V = cayley(A, scale)
    torch.testing.assert_close(torch.linalg.det(V), torch.full((3,), (-1.0) ** minus, dtype=torch.float64))
    torch.testing.assert_close(V, cayley(A, scale[0]))
    torch.testing.assert_close(V, reference.cayley(A, scale))
    assert off_orthogonal(V) <= 1e-13
    assert torch.autograd.gradcheck(lambda A: cayley(A, scale), A)
    assert torch.autograd.gradgradcheck(lambda A: cayley(A, scale), A)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 8, 33])
def test_schur_weight(size, dtype):
    judge("schur_weight", lambda: schur_leaves(size, 2), dtype)


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
    angle = torch.tensor([0.3], dtype=torch.float64)
    W = schur_weight(
        torch.eye(2, dtype=torch.float64), angle, torch.ones(1, dtype=torch.float64), torch.zeros(2, 2).double()
    )
    c, s = angle.cos(), angle.sin()
    torch.testing.assert_close(W, torch.stack([torch.cat([c, -s]), torch.cat([s, c])]))


@pytest.mark.parametrize("size", [2, 5])
def test_gradients_of_schur_weight(size):
    leaves = [x.double().requires_grad_() for x in schur_leaves(size, 2)]
    assert torch.autograd.gradcheck(schur_weight, leaves)
    assert torch.autograd.gradgradcheck(schur_weight, leaves)
    (grad,) = torch.autograd.grad(schur_weight(*leaves).sum(), leaves[3])
    assert torch.equal(grad, grad.tril(-1))


@pytest.mark.parametrize("shape", [(7, 7), (3, 6, 6), (2, 0, 0), (0, 4, 4)])
def test_operators_of_schur_weight_pass_torchs_own_checks(shape):
    leaves = schur_leaves(shape[-1], *shape[:-2]) if 0 not in shape else [
        torch.zeros(shape), torch.zeros(*shape[:-2], shape[-1] // 2), torch.zeros(*shape[:-2], shape[-1] // 2),
        torch.zeros(shape),
    ]  # fmt: skip
    leaves = [x.float() for x in leaves]
    for training in (False, True):
        opcheck(_operators.schur_weight.default, (*leaves, training))
    half = _operators.schur_weight(*leaves, True)[1]
    backward = [x.clone().requires_grad_() for x in (torch.randn(shape), *leaves)]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    opcheck(_operators.schur_weight_backward.default, (*backward, half), test_utils=checks)


@each_level
@pytest.mark.parametrize("dtype", DTYPES)
def test_schur_weight_at_every_simd_level(level, dtype, simd):
    simd(level)
    judge("schur_weight", lambda: schur_leaves(37, 2), dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.complex128])
def test_project_orthogonal_squares_the_error(dtype):
    V = skew_exp(torch.randn(2, 30, 30, dtype=dtype))
    B = V + 1e-4 * torch.randn_like(V)
    rounding = 20 * torch.finfo(dtype).eps
    errors = [off_orthogonal(project_orthogonal(B, steps=steps)) for steps in (0, 1, 2)]
    assert errors[1] <= 30 * errors[0] ** 2 + rounding  # the largest element is up to N times smaller than the 2-norm
    assert errors[2] <= 30 * errors[1] ** 2 + rounding
    assert torch.equal(project_orthogonal(B), project_orthogonal(B, steps=2))


def test_project_orthogonal_finds_the_nearest():
    B = skew_exp(torch.randn(9, 9, dtype=torch.float64)) + 0.02 * torch.randn(9, 9, dtype=torch.float64)
    U, _, Vh = torch.linalg.svd(B)
    torch.testing.assert_close(project_orthogonal(B, steps=4), U @ Vh)
    assert torch.autograd.gradcheck(project_orthogonal, B.requires_grad_())


def test_they_compile():
    A = torch.randn(6, 6)
    leaves = [x.float() for x in schur_leaves(6)]

    def step(A, P, theta, gamma, T):
        return cayley(A) + schur_weight(P, theta, gamma, T) + project_orthogonal(P)

    torch.testing.assert_close(torch.compile(step, fullgraph=True, backend="aot_eager")(A, *leaves), step(A, *leaves))


@pytest.mark.parametrize(
    ("error", "call", "said"),
    [
        (TypeError, lambda: cayley(None), "cayley: `A` must be a tensor, got NoneType"),
        (ValueError, lambda: cayley(torch.zeros(3)), r"`A` must be \(..., N, N\), got \(3,\)"),
        (
            ValueError,
            lambda: cayley(torch.zeros(3, 3), torch.ones(2)),
            r"`scale` must be \(N,\) = \(3,\) .* got \(2,\)",
        ),
        (
            TypeError,
            lambda: cayley(torch.zeros(3, 3), torch.ones(3).double()),
            "`scale` must be of dtype torch.float32",
        ),
        (TypeError, lambda: schur_weight(*schur_leaves(4)), "`theta` must be of dtype torch.float64 like `P`"),
        (
            ValueError,
            lambda: schur_weight(torch.eye(3), torch.ones(1), torch.ones(1), torch.eye(3)),
            r"`gamma` must be \(..., \(N \+ 1\) // 2\) = \(2,\), got \(1,\)",
        ),
        (TypeError, lambda: schur_weight(torch.eye(2) + 0j, *[torch.ones(1)] * 2, torch.eye(2)), "got torch.complex64"),
        (ValueError, lambda: project_orthogonal(torch.eye(2), steps=-1), "`steps` must be a non-negative integer"),
        (ValueError, lambda: project_orthogonal(torch.ones(2, 3)), r"`B` must be \(..., N, N\), got \(2, 3\)"),
    ],
)
def test_errors_name_the_argument(error, call, said):
    with pytest.raises(error, match=said):
        call()


def test_shapes_on_the_meta_device():
    A = torch.empty(2, 5, 5, device="meta")
    assert {op(A).shape for op in (skew_exp, cayley, project_orthogonal)} == {(2, 5, 5)}
