"""Fisher memory: compared with table 5 of the thesis, with closed forms, bounds and arithmetic of many digits."""

import math

import pytest
import torch

from perf.dynamics.numbers import PRINTED_TABLE_5, TABLE_5, agrees
from rnnkern.analysis import fisher_memory_curve, spatial_fisher

F64 = torch.float64


def triangle(size, alpha, beta=0.0, d=0.0):
    """(3.4.2) of the thesis: d on the diagonal, alpha below it, beta in the rest of the lower triangle."""
    below = torch.full((size, size), beta, dtype=F64).tril(-2)
    return below + alpha * torch.eye(size, dtype=F64).roll(1, 0).tril(-1) + d * torch.eye(size, dtype=F64)


def unit(size, index=0):
    return torch.eye(size, dtype=F64)[index]


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def with_radius(W, radius):
    return W * (radius / torch.linalg.eigvals(W).abs().max())


def rotation(size, seed=0):
    return torch.linalg.qr(drawn(size, size, seed=seed)).Q


# ---- table 5


@pytest.mark.parametrize("d", [0.0, 0.2])
@pytest.mark.parametrize(("alpha", "beta"), TABLE_5)
def test_table_5(alpha, beta, d):
    """Both as the sum of the curve and as a quadratic form; with d = 0 also as printed."""
    W = triangle(100, alpha, beta, d)
    wanted, printed = (table[alpha, beta][int(d > 0)] for table in (TABLE_5, PRINTED_TABLE_5))
    total = fisher_memory_curve(W, unit(100), 1000).sum().item()
    assert agrees(total, wanted)
    J = spatial_fisher(W)
    assert J[0, 0].item() == pytest.approx(total, rel=1e-6)
    assert J.trace().item() == pytest.approx(100, rel=1e-7)
    if d == 0:
        assert f"{total:.3g}" == f"{float(printed):.3g}"
    else:
        assert 0 < abs(total / float(printed) - 1) < 0.025


def test_of_a_delay_line_the_total_is_a_harmonic_number():
    harmonic = sum(1 / k for k in range(1, 101))
    assert fisher_memory_curve(triangle(100, 1.0), unit(100), 100).sum().item() == pytest.approx(harmonic, rel=1e-14)


def by_solving(W, v, lags):
    """J_tot with C formed and solved for."""
    C, A, signals = torch.eye(len(W), dtype=F64), W, [v]
    while A.any():
        C, A = C + A @ C @ A.T, A @ A
    for _ in range(lags - 1):
        signals.append(W @ signals[-1])
    signals = torch.stack(signals, 1)
    return (signals * torch.linalg.solve(C, signals)).sum().item()


def test_control_with_the_covariance_formed_and_solved_for_table_5_is_missed():
    assert abs(by_solving(triangle(100, 1.0, 0.0, 0.2), unit(100), 1000) - 16.2982) > 1e-3
    well_conditioned = triangle(20, 1.0, 0.0, 0.2)
    total = fisher_memory_curve(well_conditioned, unit(20), 1000).sum().item()
    assert by_solving(well_conditioned, unit(20), 1000) == pytest.approx(total, rel=1e-9)


@pytest.mark.proof
@pytest.mark.parametrize(("alpha", "beta", "d"), [(1.05, 0.005, 0.2), (1.05, 0.0, 0.2), (0.95, 0.005, 0.0)])
def test_curve_and_spatial_information_in_arithmetic_of_120_digits(alpha, beta, d):
    mpmath = pytest.importorskip("mpmath")
    size = 40
    W = triangle(size, alpha, beta, d)
    with mpmath.workdps(120):
        exact = mpmath.matrix(W.tolist())
        C, A = mpmath.eye(size), exact
        while mpmath.mnorm(A) > mpmath.mpf(10) ** -100:
            C, A = C + A * C * A.T, A * A
        inverse = C**-1
        v, wanted = mpmath.matrix(unit(size).tolist()), []
        for _ in range(60):
            wanted.append(float((v.T * inverse * v)[0]))
            v = exact * v
        # J = C^-1 + W^T J W, again by doubling
        J, A = inverse, exact
        while mpmath.mnorm(A) > mpmath.mpf(10) ** -100:
            J, A = J + A.T * J * A, A * A
        spatial = torch.tensor([[float(J[i, j]) for j in range(size)] for i in range(size)], dtype=F64)
    found = fisher_memory_curve(W, unit(size), 60)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=F64), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(spatial_fisher(W), spatial, rtol=1e-9, atol=1e-9)


# ---- closed forms


@pytest.mark.parametrize("a", [0.5, 0.95, 1.0, 1.05, 2.0])
def test_the_curve_of_a_delay_line(a):
    size = 30
    k = torch.arange(size, dtype=F64)
    wanted = 1 / (k + 1) if a == 1 else a ** (2 * k) * (a**2 - 1) / (a ** (2 * k + 2) - 1)
    found = fisher_memory_curve(triangle(size, a), unit(size), size + 5)
    torch.testing.assert_close(found[:size], wanted, rtol=1e-13, atol=0)
    assert not found[size:].any()
    rotated = rotation(size)
    if a <= 1.05:  # above, rounding errors of W alone move its eigenvalues beyond 1
        again = fisher_memory_curve(rotated @ triangle(size, a) @ rotated.T, rotated[:, 0], size)
        torch.testing.assert_close(again, wanted, rtol=1e-9, atol=1e-12)


def test_the_total_of_a_long_delay_line():
    """Entries sqrt(alpha): close to (N / eps)(1 - 1 / alpha). Section 2.6 prints 1 - 1 / eps instead."""
    total = spatial_fisher(triangle(50, math.sqrt(2.0)))[0, 0].item()
    assert round(total, 2) == 25.80
    relative = [spatial_fisher(triangle(size, math.sqrt(2.0)))[0, 0].item() / (size / 2) for size in (50, 100, 200)]
    assert relative == sorted(relative, reverse=True)
    assert relative[-1] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("noise", [0.25, 1.0, 3.0])
def test_of_a_normal_weight_every_direction_has_the_same_total(noise):
    size = 12
    Q = rotation(size)
    blocks = torch.block_diag(*(torch.tensor([[a, -b], [b, a]], dtype=F64) for a, b in 0.6 * drawn(6, 2).tanh()))
    W = Q @ blocks @ Q.T
    torch.testing.assert_close(spatial_fisher(W, noise), torch.eye(size, dtype=F64) / noise)
    v = drawn(size, seed=1)
    total = fisher_memory_curve(W, v / v.norm(), 500, noise).sum()
    assert total.item() == pytest.approx(1 / noise, rel=1e-12)


@pytest.mark.parametrize("noise", [1.0, 0.5])
def test_the_trace_of_the_spatial_information(noise):
    for seed in range(5):
        W = with_radius(drawn(20, 20, seed=seed), 0.95)
        assert spatial_fisher(W, noise).trace().item() == pytest.approx(20 / noise, rel=1e-12)


def test_the_quadratic_form_is_the_sum_of_the_curve_and_its_eigenvectors_are_the_extremes():
    W = with_radius(drawn(15, 15), 0.9) + 0.5 * triangle(15, 1.0).T
    W = with_radius(W, 0.9)
    J = spatial_fisher(W)
    assert torch.equal(J, J.T)
    values, vectors = torch.linalg.eigh(J)

    def total(v):
        return fisher_memory_curve(W, v, 2000).sum().item()

    assert total(vectors[:, -1]) == pytest.approx(values[-1].item(), rel=1e-10)
    assert total(vectors[:, 0]) == pytest.approx(values[0].item(), rel=1e-8)
    for seed in range(3):
        v = drawn(15, seed=seed)
        v = v / v.norm()
        assert values[0] < total(v) < values[-1]
        assert total(v) == pytest.approx((v @ J @ v).item(), rel=1e-10)


# ---- bounds


def test_the_curve_is_at_most_that_of_the_matched_delay_line_which_attains_the_bound():
    for seed in range(50):
        size = 3 + seed % 10
        W = with_radius(drawn(size, size, seed=seed), 0.3 + 0.6 * (seed % 7) / 6)
        v = drawn(size, seed=1000 + seed)
        v, signals = v / v.norm(), []
        for _ in range(size):
            signals.append(v)
            v = W @ v
        A = torch.stack(signals).square().sum(1)  # A_m = |W^m v|^2
        bound = 1 / (1 / A).cumsum(0)
        assert (fisher_memory_curve(W, signals[0], size) <= bound * (1 + 1e-12)).all()
        line = torch.diag((A[1:] / A[:-1]).sqrt(), -1)
        torch.testing.assert_close(fisher_memory_curve(line, unit(size), size), bound, rtol=1e-12, atol=0)


def gram(Theta, alpha):
    """The triangular A with Theta = D A, D the delay line: A_ij = Theta_{i+1,j} / sqrt(alpha), last row e_N."""
    return torch.cat([Theta[1:] / math.sqrt(alpha), unit(len(Theta), -1)[None]])


def test_proposition_3_4_1_holds_in_200_draws():
    generator = torch.Generator().manual_seed(0)
    for draw in range(200):
        size, alpha = 3 + draw % 6, (0.5, 1.0, 1.5)[draw % 3]
        scale = 0.02 + 0.5 * torch.rand((), generator=generator, dtype=F64)
        Theta = scale * torch.randn(size, size, dtype=F64, generator=generator).tril(-2)
        Theta += triangle(size, math.sqrt(alpha))
        largest = torch.linalg.matrix_norm(gram(Theta, alpha), 2)
        assert largest >= 1
        k = torch.arange(size, dtype=F64)
        line = 1 / (k + 1) if alpha == 1 else alpha**k * (alpha - 1) / (alpha ** (k + 1) - 1)
        found = fisher_memory_curve(Theta, unit(size), size)
        assert (found >= line / largest ** (2 * (size - 1)) * (1 - 1e-12)).all()


def test_the_bound_of_the_covariance_needs_the_power_that_a_2_6_leaves_out():
    """C <= sigma^{2(N - 1)} D holds, and C <= sigma^2 D, as (A.2.6) prints it, does not. D is C of the delay line."""
    size = 8
    Theta = triangle(size, 1.0, 1.0)
    sigma = torch.linalg.matrix_norm(gram(Theta, 1.0), 2)
    powers = [torch.linalg.matrix_power(Theta, k) for k in range(size)]
    C = sum(power @ power.T for power in powers)
    D = torch.arange(1, size + 1, dtype=F64).diag()
    assert torch.linalg.eigvalsh(sigma ** (2 * (size - 1)) * D - C)[0] >= 0
    assert torch.linalg.eigvalsh(sigma**2 * D - C)[0] < 0


# ---- errors


@pytest.mark.parametrize("function", [spatial_fisher, lambda W, noise=1.0: fisher_memory_curve(W, unit(3), 4, noise)])
@pytest.mark.parametrize(
    ("W", "error", "message"),
    [
        (torch.ones(2, 3), ValueError, r"`W` must be \(..., N, N\), got \(2, 3\)"),
        (torch.zeros(2, 3, 3), ValueError, r"`W` must be \(n, n\), got \(2, 3, 3\)"),
        (torch.eye(3), ValueError, "`W` must have a spectral radius below 1, got 1"),
        (torch.full((3, 3), math.inf), ValueError, "`W` must be finite"),
        (torch.zeros(3, 3, dtype=torch.complex64), TypeError, "`W` must have one of the dtypes"),
    ],
)
def test_wrong_matrices_raise(function, W, error, message):
    with pytest.raises(error, match=message):
        function(W)
    with pytest.raises(ValueError, match="`noise` must be positive, got 0"):
        function(torch.zeros(3, 3), noise=0)


def test_other_arguments_raise():
    W = torch.zeros(3, 3)
    with pytest.raises(ValueError, match=r"`v` must be \(n,\) = \(3,\) and finite, got \(2,\)"):
        fisher_memory_curve(W, torch.ones(2), 4)
    with pytest.raises(TypeError, match="`v` must be a real floating-point tensor, got list"):
        fisher_memory_curve(W, [1.0, 0.0, 0.0], 4)
    with pytest.raises(ValueError, match="`lags` must not be negative, got -1"):
        fisher_memory_curve(W, torch.ones(3), -1)
    assert fisher_memory_curve(W, torch.ones(3), 0).shape == (0,)
    assert fisher_memory_curve(W, torch.ones(3), 2).tolist() == [3, 0]


def test_powers_that_overflow_raise():
    """The spectral radius is 1/2, and entries of the powers grow to 1e300 and more before they decay."""
    with pytest.raises(ValueError, match="`W` must have powers that decay in float64"):
        fisher_memory_curve(triangle(40, 1e12, 0.0, 0.5), unit(40), 3)
