"""Henrici's departure, Schur parts and transients: compared with closed forms, with bounds, and with each other."""

import math

import pytest
import torch

from python_tests.analysis.matrices import drawn, rotated, rotation, triangle
from rnnkern.analysis import commutator, henrici_departure, schur_parts, transient_norms
from rnnkern.nn import NonNormalRNN
from rnnkern.parametrizations import schur

F64 = torch.float64


def gaussian(*shape, seed=0):
    return drawn(*shape, seed=seed) / shape[-1] ** 0.5


def grcar(size):
    ones = torch.ones(size, size, dtype=F64)
    return ones.triu() - ones.triu(4) - ones.tril(-1) + ones.tril(-2)


# ---- Henrici's departure


@pytest.mark.parametrize(("size", "wanted"), [(10, 3.0), (50, 7.0), (100, 9.949874371066199)])
def test_the_departure_of_a_delay_line(size, wanted):
    found = henrici_departure(triangle(size, 1.0))
    assert found.d.item() == pytest.approx(wanted, rel=1e-15)
    assert found.lower <= found.d <= found.upper
    assert commutator(triangle(size, 1.0)).item() == pytest.approx(math.sqrt(2), rel=1e-15)


@pytest.mark.parametrize(("size", "formula", "band"), [(10, 2.9990, 1e-3), (50, 6.11, 0.2), (100, 7.19, 0.2)])
def test_eigenvalues_alone_miss_the_departure_of_a_rotated_delay_line_and_the_bounds_do_not(size, formula, band):
    for seed in range(3):
        found = henrici_departure(rotated(triangle(size, 1.0), seed))
        assert abs(found.d - formula) < band
        assert found.lower <= math.sqrt(size - 1) <= found.upper * (1 + 1e-12)


@pytest.mark.parametrize("size", [20, 100])
def test_of_a_normal_matrix_only_the_commutator_and_the_schur_form_are_near_zero(size):
    """The eigenvalues leave a difference of the order of eps, and its root is 1e-7."""
    V = rotation(size, 0)
    found = henrici_departure(V)
    assert 0 <= found.lower < 1e-14
    assert found.d < 1e-6
    assert found.upper < 1e-5
    assert commutator(V) < 1e-13
    assert schur_parts(V)[2].norm() < 1e-12


def test_the_bounds_follow_their_formulas():
    W = gaussian(9, 9)
    f, K, found = W.square().sum(), commutator(W), henrici_departure(W)
    torch.testing.assert_close(K, torch.linalg.matrix_norm(W @ W.T - W.T @ W))
    torch.testing.assert_close(found.lower.square(), f - (f**2 - K**2 / 2).sqrt())
    torch.testing.assert_close(found.upper.square(), torch.minimum(f, math.sqrt((9**3 - 9) / 12) * K))


def test_complex_matrices_and_stacks():
    W = torch.complex(gaussian(2, 3, 6, 6), gaussian(2, 3, 6, 6, seed=1))
    found = henrici_departure(W)
    assert found.d.shape == found.lower.shape == found.upper.shape == commutator(W).shape == (2, 3)
    assert found.d.dtype == F64
    eigenvalues = torch.linalg.eigvals(W[1, 2]).abs().square().sum()
    torch.testing.assert_close(found.d[1, 2], (W[1, 2].abs().square().sum() - eigenvalues).sqrt())
    V = torch.linalg.qr(W).Q
    assert (henrici_departure(V).d < 1e-6).all()
    assert (henrici_departure(V.to(torch.complex64)).d < 1e-2).all()


def network(size=7, heads=None, seed=0):
    """A NonNormalRNN with a random T."""
    torch.manual_seed(seed)
    rnn = NonNormalRNN(3, size, num_heads=heads) if heads else NonNormalRNN(3, size)
    rnn.double()
    with torch.no_grad():
        held = rnn.parametrizations.weight_hh_l0
        held.original0.normal_(std=0.3)
        held.original1.uniform_(0, 2 * math.pi)
        held.original3.normal_()
    return rnn


@pytest.mark.parametrize("size", [1, 2, 7, 12])
def test_of_a_weight_in_schur_form_it_is_computed_from_the_parameters(size):
    """Some blocks have real eigenvalues, so that |T| alone would be wrong."""
    for seed in range(3):
        rnn = network(size, seed=seed)
        W = rnn.weight_hh_l0.detach()
        wanted = (W.square().sum() - torch.linalg.eigvals(W).abs().square().sum()).clamp(min=0).sqrt()
        found = henrici_departure(rnn, "weight_hh_l0")
        torch.testing.assert_close(found.d, wanted, rtol=0, atol=1e-6)
        assert found.d == found.lower == found.upper


def test_of_a_delay_line_in_schur_form_it_is_exact():
    rnn = NonNormalRNN(1, 100, init="haar", dtype=F64)
    held = rnn.parametrizations.weight_hh_l0
    with torch.no_grad():
        held.original2.zero_()
        held.original3.copy_(triangle(100, 1.0))
    assert henrici_departure(rnn).d.item() == pytest.approx(math.sqrt(99), rel=1e-15)
    assert henrici_departure(rnn.weight_hh_l0).d < 8  # from its eigenvalues


# ---- Schur parts


def checked_parts(W, atol=1e-13):
    """The parts of a matrix, after the properties that they have by definition have been checked."""
    P, Lambda, T = schur_parts(W)
    size, scale = len(W), W.norm().clamp(min=1)
    torch.testing.assert_close(P.T @ P, torch.eye(size, dtype=F64), rtol=0, atol=1e-13)
    torch.testing.assert_close(P @ (Lambda + T) @ P.T, W, rtol=0, atol=(atol * scale).item())
    assert not T.triu().any()
    assert not Lambda.triu(2).any()
    torch.testing.assert_close(Lambda.triu(1), -Lambda.tril(-1).T)
    assert commutator(Lambda) <= 1e-13 * scale**2
    beside = Lambda.diagonal(1) != 0
    assert not (beside[1:] & beside[:-1]).any()
    return P, Lambda, T


@pytest.mark.parametrize(
    "W",
    [gaussian(n, n) for n in (0, 1, 2, 3, 40)]
    + [rotated(triangle(40, 1.0)), triangle(40, 1.0).T, grcar(60), rotation(30, 0), torch.eye(6, dtype=F64)]
    + [rotated(torch.eye(8, dtype=F64) + triangle(8, 1.0)), torch.zeros(4, 4, dtype=F64)],
    ids=lambda W: None,
)
def test_schur_parts_reconstruct_every_matrix(W):
    checked_parts(W)


def test_eigenvalues_of_the_blocks_are_those_of_the_matrix_and_t_has_the_norm_of_the_departure():
    W = gaussian(25, 25)
    _, Lambda, T = checked_parts(W)
    blocks = Lambda + torch.where(Lambda.tril(-1) != 0, T, 0)
    found, wanted = (torch.linalg.eigvals(x) for x in (blocks, W))
    assert (found[:, None] - wanted).abs().amin(0).max() < 1e-12
    torch.testing.assert_close(T.norm(), henrici_departure(W).d)


@pytest.mark.parametrize("shape", [(9, None), (8, 2)])
def test_schur_parts_of_a_module_are_its_parameters(shape):
    rnn = network(*shape)
    held = rnn.parametrizations.weight_hh_l0
    P, Lambda, T = schur_parts(rnn)
    torch.testing.assert_close(P @ (Lambda + T) @ P.mT, rnn.weight_hh_l0.detach())
    assert torch.equal(T, held.original3.detach().tril(-1))
    moduli = torch.linalg.eigvals(Lambda).abs()
    torch.testing.assert_close(moduli, torch.ones_like(moduli))
    assert henrici_departure(rnn).d.shape == T.shape[:-2]


def test_the_departure_before_and_after_a_weight_is_written_in_schur_form_agrees():
    W = gaussian(11, 11)
    linear = schur(torch.nn.Linear(11, 11, bias=False, dtype=F64), "weight")
    linear.weight = W
    torch.testing.assert_close(henrici_departure(linear).d, henrici_departure(W).d)


# ---- transients

TIMES = [10, 50, 90, 99, 100]


@pytest.mark.parametrize(
    ("alpha", "beta", "wanted"),
    [
        (0.95, 0.0, [0.568, 0.0544, 0.0031, 0.0006, 0.0]),
        (1.0, 0.0, [0.9487, 0.7071, 0.3162, 0.1, 0.0]),
        (1.05, 0.0, [1.5453, 8.1087, 25.529, 12.524, 0.0]),
        (1.05, 0.005, [1.8196, 76.384, 50.042, 12.524, 0.0]),
    ],
)
def test_transients_of_figure_1b(alpha, beta, wanted):
    found = transient_norms(triangle(100, alpha, beta), 101)
    digits = [len(str(value).partition(".")[2]) for value in wanted]
    assert [round(found[t].item(), k) for t, k in zip(TIMES, digits, strict=True)] == wanted
    if not beta:
        t = torch.arange(101, dtype=F64)
        torch.testing.assert_close(found, ((100 - t) / 100).sqrt() * alpha**t)
    assert found[0] == 1


def test_transients_of_stacks():
    W = gaussian(3, 2, 5, 5)
    found = transient_norms(W, 6)
    assert found.shape == (3, 2, 6)
    torch.testing.assert_close(found[2, 1], transient_norms(W[2, 1], 6))
    assert transient_norms(W, 0).shape == (3, 2, 0)
