"""Henrici's departure, Schur parts and transients: compared with closed forms, with bounds, and with each other."""

import math

import pytest
import torch

from rnnkern.analysis import commutator, henrici_departure, schur_parts, transient_norms
from rnnkern.nn import RNN, NonNormalRNN
from rnnkern.parametrizations import schur

F64 = torch.float64


def triangle(size, alpha, beta=0.0, d=0.0):
    """(3.4.2) of the thesis: d on the diagonal, alpha below it, beta in the rest of the lower triangle."""
    below = torch.full((size, size), beta, dtype=F64).tril(-2)
    return below + alpha * torch.eye(size, dtype=F64).roll(1, 0).tril(-1) + d * torch.eye(size, dtype=F64)


def rotation(size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, dtype=F64, generator=generator)).Q


def rotated(W, seed=0):
    P = rotation(len(W), seed)
    return P @ W @ P.T


def gaussian(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


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


def test_of_a_symmetric_matrix_it_is_zero():
    W = gaussian(12, 12)
    assert henrici_departure(W + W.T).d <= henrici_departure(W + W.T).upper < 1e-5
    assert commutator(torch.diag(torch.arange(5.0))) == 0


@pytest.mark.parametrize(("size", "wanted", "band"), [(100, 0.4930, 0.025), (400, 0.4958, 0.01)])
def test_of_a_gaussian_matrix_it_is_half_of_the_squared_norm(size, wanted, band):
    for seed in range(3 if size == 100 else 1):
        W = gaussian(size, size, seed=seed)
        assert abs(henrici_departure(W).d.square() / W.square().sum() - wanted) < band


def test_the_bounds_by_the_commutator_hold_in_100_draws():
    generator = torch.Generator().manual_seed(0)
    for size in (2, 3, 8, 20):
        # From almost symmetric to almost triangular, all of them well conditioned enough for their eigenvalues.
        W = torch.randn(25, size, size, dtype=F64, generator=generator)
        share = torch.logspace(-6, 0, 25, dtype=F64)[:, None, None]
        W = (1 - share) * (W + W.mT) / 2 + share * W.tril()
        d = (W.square().sum((1, 2)) - torch.linalg.eigvals(W).abs().square().sum(1)).clamp(min=0).sqrt()
        found = henrici_departure(W)
        slack = 1e-7 * W.norm(dim=(1, 2))
        assert (found.lower <= d + slack).all()
        assert (d <= found.upper + slack).all()
        torch.testing.assert_close(found.d, d, rtol=0, atol=slack.max().item())


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


def test_with_eigenvalues_from_the_parameters_it_is_the_norm_of_t():
    rnn = network(10)
    held = rnn.parametrizations.weight_hh_l0
    with torch.no_grad():
        held.original3.diagonal(-1)[::2].zero_()
    torch.testing.assert_close(henrici_departure(rnn).d, held.original3.detach().tril(-1).norm())


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


def test_transients_of_a_normal_weight_fall_as_its_eigenvalues():
    eigenvalues = torch.linspace(-0.9, 0.8, 12, dtype=F64)
    found = transient_norms(rotated(eigenvalues.diag()), 30)
    powers = eigenvalues ** torch.arange(30, dtype=F64)[:, None]
    torch.testing.assert_close(found, powers.square().mean(1).sqrt())
    assert (found.diff() < 0).all()


def test_transients_are_the_mean_over_the_unit_sphere():
    """1,000 starts: within 4 standard errors at every step."""
    W = gaussian(20, 20, seed=1)
    h = torch.randn(20, 1000, dtype=F64, generator=torch.Generator().manual_seed(0))
    h, found = h / h.norm(dim=0), transient_norms(W, 40)
    for mean in found.square():
        squares = h.square().sum(0)
        assert abs(squares.mean() - mean) <= 4 * squares.std() / 1000**0.5 + 1e-12
        h = W @ h


def test_transients_of_stacks():
    W = gaussian(3, 2, 5, 5)
    found = transient_norms(W, 6)
    assert found.shape == (3, 2, 6)
    torch.testing.assert_close(found[2, 1], transient_norms(W[2, 1], 6))
    assert transient_norms(W, 0).shape == (3, 2, 0)


def power(size, t, x):
    """A^t of proposition 3.4.2 in closed form: (A^t)_ij = sum_{l=1}^m C(t, l) C(m - 1, l - 1) x^l, m = j - i."""
    entries = [1.0, *(sum(math.comb(t, k) * math.comb(m - 1, k - 1) * x**k for k in range(1, m + 1))
                      for m in range(1, size))]  # fmt: skip
    return sum(torch.diag(torch.full((size - m,), value, dtype=F64), m) for m, value in enumerate(entries))


def test_proposition_3_4_2_in_closed_form():
    size, t, x = 9, 23, 0.37
    A = torch.eye(size, dtype=F64) + x * torch.ones(size, size, dtype=F64).triu(1)
    wanted = power(size, t, x)
    assert ((torch.linalg.matrix_power(A, t) - wanted).abs() <= 1e-14 * wanted).all()
    found = transient_norms(A, t + 1)[t]
    assert found.item() == pytest.approx(wanted.norm().item() / math.sqrt(size), rel=1e-14)


def test_the_norm_of_a_triangle_with_unit_spectrum_grows_as_a_power_of_t():
    """Of degree n - 1, so the logarithm of the norm divided by that of t approaches 8, and its slope in t falls to
    0."""
    A = torch.eye(9, dtype=F64) + 0.37 * torch.ones(9, 9, dtype=F64).triu(1)
    logs = transient_norms(A, 4001).log()
    assert (logs[4000] - logs[2000]) / math.log(2) == pytest.approx(8, abs=0.1)
    assert (logs[200:].diff().diff() < 0).all()


# ---- errors


@pytest.mark.parametrize("function", [henrici_departure, commutator, schur_parts, lambda W: transient_norms(W, 3)])
@pytest.mark.parametrize(
    ("W", "error", "message"),
    [
        (torch.ones(2, 3), ValueError, r"`W` must be \(..., N, N\), got \(2, 3\)"),
        (torch.ones(3), ValueError, r"`W` must be \(..., N, N\)"),
        (torch.full((2, 2), math.nan), ValueError, "`W` must be finite"),
        (torch.ones(2, 2, dtype=torch.long), TypeError, "`W` must have one of the dtypes"),
    ],
)
def test_wrong_matrices_raise(function, W, error, message):
    with pytest.raises(error, match=message):
        function(W)


@pytest.mark.parametrize("function", [henrici_departure, schur_parts])
def test_modules_without_the_weight_raise(function):
    with pytest.raises(ValueError, match="`W` must have a weight in Schur form, as NonNormalRNN, got RNN"):
        function(RNN(2, 3))
    two = NonNormalRNN(2, 3, num_layers=2)
    with pytest.raises(ValueError, match=r"`name` must be one of \['weight_hh_l0', 'weight_hh_l1'\], got None"):
        function(two)
    with pytest.raises(ValueError, match=r"`name` must be one of .*, got 'weight'"):
        function(two, "weight")
    function(two, "weight_hh_l1")


def test_other_arguments_raise():
    with pytest.raises(ValueError, match="`steps` must not be negative, got -1"):
        transient_norms(torch.eye(2), -1)
    with pytest.raises(ValueError, match=r"`W` must be \(n, n\), got \(2, 3, 3\)"):
        schur_parts(gaussian(2, 3, 3))
    with pytest.raises(TypeError, match="`W` must have one of the dtypes"):
        schur_parts(torch.eye(2, dtype=torch.complex64))
