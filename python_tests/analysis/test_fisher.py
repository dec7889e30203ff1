"""Fisher memory: compared with table 5 of the thesis, with closed forms, bounds and arithmetic of many digits."""

import pytest
import torch

from perf.dynamics.numbers import PRINTED_TABLE_5, TABLE_5, agrees
from python_tests.analysis.matrices import drawn, rotation, triangle
from rnnkern.analysis import fisher_memory_curve, spatial_fisher

F64 = torch.float64


def unit(size, index=0):
    return torch.eye(size, dtype=F64)[index]


def with_radius(W, radius):
    return W * (radius / torch.linalg.eigvals(W).abs().max())


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


def test_of_a_zero_matrix_only_the_newest_signal_is_known():
    W = torch.zeros(3, 3)
    assert fisher_memory_curve(W, torch.ones(3), 0).shape == (0,)
    assert fisher_memory_curve(W, torch.ones(3), 2).tolist() == [3, 0]
