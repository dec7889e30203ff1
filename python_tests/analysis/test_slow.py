"""Slow modes and singular values: compared with networks, exact cases, and sums in rational arithmetic."""

import math
from fractions import Fraction

import pytest
import torch

from perf.dynamics.networks import steady
from perf.dynamics.numbers import agrees
from python_tests.analysis.matrices import drawn
from rnnkern.analysis import (
    Gains,
    expected_slow_fraction,
    fixed_points,
    mean_field,
    participation,
    shaping,
    slow_fraction,
    squared_singular_values,
)
from rnnkern.analysis._slow import binary_gate, constant_gate

F64 = torch.float64


# ---- slow modes


def test_the_share_of_slow_modes():
    eigenvalues = torch.tensor([1.0, 1 + 0.04j, 0.94, -1.0])
    assert slow_fraction(eigenvalues).item() == 0.5
    assert slow_fraction(eigenvalues, radius=0.07).item() == 0.75
    Q = torch.linalg.qr(drawn(3, 4, 4)).Q
    J = Q @ torch.diag(torch.tensor([0.99, 0.97, 0.5, 0.2], dtype=F64)) @ Q.mT
    torch.testing.assert_close(slow_fraction(J), torch.full((3,), 0.5, dtype=F64))
    assert slow_fraction(J.float()).dtype == F64
    torch.testing.assert_close(slow_fraction(torch.linalg.eigvals(J)), slow_fraction(J))


def test_the_expected_share_is_a_probability_of_the_pre_activation():
    """Equation 111 with a bias: P(exp(-zeta) < r) of a normal zeta."""
    assert expected_slow_fraction(0.35, Gains(3.0, 10.0, 0.0)) == pytest.approx(
        math.erfc(-math.log(0.05) / (10 * math.sqrt(0.7))) / 2, rel=1e-14
    )
    zeta = 1.5 + math.sqrt(16 * 0.3 + 0.7) * drawn(1_000_000)
    found = expected_slow_fraction(0.3, Gains(2.0, 4.0, 1.0), {"z": 1.5}, {"z": 0.7}, radius=0.1)
    assert found == pytest.approx((torch.exp(-zeta) < 0.1).double().mean().item(), abs=2e-3)
    lstm = expected_slow_fraction(0.3, Gains(2.0, 4.0, 1.0, 1.0), {"f": 1.5}, {"f": 0.7}, cell="lstm", radius=0.1)
    assert lstm == found
    assert expected_slow_fraction(0.3, Gains(2.0, 0.0, 1.0), {"z": 4.0}) == 1
    assert expected_slow_fraction(0.3, Gains(2.0, 0.0, 1.0)) == 0


@pytest.mark.proof
@pytest.mark.parametrize("a_z", [2.0, 5.0, 10.0, 20.0, 40.0])
def test_networks_have_the_expected_share_of_slow_modes(a_z):
    """a_h = 3, a_r = 0, 500 units, seeds 0 to 2: within .04 of (111), which gives .006, .158, .302, .391 and .449."""
    gains = Gains(3.0, a_z, 0.0)
    C = mean_field("gru_reset_before", gains, lags=0, population=5000, generator=torch.Generator().manual_seed(0)).C[0]
    wanted = expected_slow_fraction(C.item(), gains)
    printed = {2.0: 0.006, 5.0: 0.158, 10.0: 0.302, 20.0: 0.391, 40.0: 0.449}[a_z]
    assert abs(wanted - printed) < 0.02  # C_h of .33 to .37, as the networks had
    shares = [slow_fraction(steady("gru_reset_before", gains, 500, seed).eigenvalues).item() for seed in range(3)]
    assert abs(sum(shares) / 3 - wanted) < 0.04, shares


def test_participation():
    assert participation(torch.full((7, 1), 0.3)).item() == pytest.approx(1)
    assert participation(torch.eye(7)).tolist() == pytest.approx([1 / 7] * 7)
    v = torch.complex(drawn(9, 3), drawn(9, 3, seed=1))
    square = v.abs().square()
    torch.testing.assert_close(participation(v), square.sum(0) ** 2 / (9 * square.square().sum(0)))
    torch.testing.assert_close(participation(1e200 * v), participation(v))


# ---- singular values of powers


@pytest.mark.parametrize("n", [0, 1, 7, 60])
@pytest.mark.parametrize(
    ("z", "rho"), [(Fraction(1, 2), Fraction(6, 5)), (Fraction(1, 8), Fraction(3)), (0, Fraction(2))]
)
def test_a_constant_gate_in_rational_arithmetic(z, rho, n):
    """(139), and (140) with 2F1(-n, -n; 1; x) in place of 1F2(-n, -n; -1; x)."""
    own = (1 - z) * rho
    wanted = sum(math.comb(n, q) ** 2 * z ** (2 * (n - q)) * own ** (2 * q) for q in range(n + 1))
    assert constant_gate(float(z), float(rho), n) == pytest.approx(float(wanted), rel=1e-12)


@pytest.mark.parametrize(("alpha", "rho"), [(0.5, 0.9), (0.3, 1.7), (1.0, 1.1), (0.0, 1.1)])
def test_a_switch_is_the_geometric_sum_with_a_last_term_of_its_own(alpha, rho):
    factor = alpha * rho**2
    for n in (0, 1, 5):
        wanted = (1 - alpha) * sum(factor**k for k in range(n)) + factor**n
        assert binary_gate(alpha, rho, n) == pytest.approx(wanted, rel=1e-14)
    assert binary_gate(alpha, rho, 0) == 1
    if factor < 1:
        assert binary_gate(alpha, rho, 500) == pytest.approx((1 - alpha) / (1 - factor), rel=1e-9)  # (137)


def test_singular_values_through_binary_gates_are_those_of_random_matrices():
    """600 units: .851 and .788 at n = 1 and 2; (135) as printed would give .606 and .683."""
    units, alpha, rho = 600, 0.575, math.sqrt(0.426 / 0.575)
    closed = torch.arange(units) >= alpha * units
    J = closed.double().diag() + (~closed).double()[:, None] * rho * drawn(units, units) / units**0.5
    for n, digits in enumerate(("1.000", "0.851", "0.788")):
        wanted = binary_gate(alpha, rho, n)
        assert agrees(wanted, digits)
        assert abs(torch.linalg.matrix_power(J, n).square().sum().item() / units - wanted) < 0.01


def test_the_public_function_uses_gains_and_biases():
    assert squared_singular_values("gru_reset_before", Gains(2.4, 0.0, 0.0), 10, 0.0) == constant_gate(0.5, 1.2, 10)
    biased = squared_singular_values("gru", Gains(2.0, 0.0, 0.0), 3, 0.0, {"z": 1.0, "r": -1.0})
    assert biased == pytest.approx(constant_gate(1 / (1 + math.exp(-1)), 2 / (1 + math.e), 3), rel=1e-14)
    gains = Gains(3.0, 100.0, 1.0)
    (C,) = fixed_points(gains)
    found = squared_singular_values("gru_reset_before", gains, 4, C, {"z": 20.0}, switch=True)
    alpha = math.erfc(0.2 / math.sqrt(2 * C)) / 2
    assert found == pytest.approx(binary_gate(alpha, shaping(C, gains), 4), rel=1e-14)
    assert squared_singular_values("tanh", Gains(1.5), 3, 0.0) == pytest.approx(1.5**6, rel=1e-14)
