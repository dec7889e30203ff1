"""Zero states, fixed points, phases and pinching of random networks, compared with other computations and networks."""

import math

import pytest
import torch

from perf.dynamics import numbers
from perf.dynamics.networks import network
from perf.dynamics.numbers import agrees
from python_tests.tiers import quick_where
from rnnkern.analysis import (
    Gains,
    bifurcation,
    fixed_point_support,
    fixed_points,
    jacobian,
    marginal,
    phase,
    pinching_rate,
    shaping,
    zero_point,
)

F64 = torch.float64
FIXED_POINTS = [(cell, *gains) for cell, found in numbers.FIXED_POINTS.items() for gains in found]
BIFURCATIONS = [(cell, a_h) for cell, found in numbers.BIFURCATIONS.items() for a_h in found]
BIFURCATIONS = quick_where(lambda case: case in (("gru", 1.9), *BIFURCATIONS[:7]), BIFURCATIONS)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def normal(limit, points):
    """Points and weights of an integral over the normal distribution, on a grid."""
    x = torch.linspace(-limit, limit, points, dtype=F64)
    weight = torch.exp(-x.square() / 2)
    return x, weight / weight.sum()


# ---- the zero state


def test_the_disk_of_the_zero_state():
    biases = {"z": 0.7, "r": -0.4}
    z, r = sigmoid(0.7), sigmoid(-0.4)
    for cell in ("gru", "gru_reset_before"):
        found = zero_point(cell, Gains(1.7, 20.0, 20.0), biases)
        assert found[:2] == pytest.approx((z, (1 - z) * r * 1.7), rel=1e-15)
    f, i, o = (sigmoid(b) for b in (1.0, -0.5, 0.3))
    found = zero_point("lstm", Gains(1.7, 9.0, 9.0, 9.0), {"f": 1.0, "i": -0.5, "o": 0.3})
    assert found[:2] == pytest.approx((f, o * i * 1.7), rel=1e-15)
    assert zero_point("tanh", Gains(0.9)) == (0.0, 0.9, True)


@pytest.mark.parametrize(
    ("cell", "gains", "biases", "a_h"),
    [
        ("gru", (0.0, 0.0), {}, 2.0),
        ("gru_reset_before", (5.0, 5.0), {"r": -1.0}, 1 + math.e),
        ("gru_reset_before", (5.0, 5.0), {"r": 1.0, "z": 2.0}, 1 + 1 / math.e),
        ("lstm", (1.0, 1.0, 1.0), {"f": 1.0}, 1.0757657),
        ("tanh", (), {}, 1.0),
    ],
)
def test_the_gain_at_which_the_zero_state_loses_its_stability(cell, gains, biases, a_h):
    """Just beyond it, mean field theory has a small nonzero fixed point, if the gain of r is small."""
    below, above = (Gains(a_h * factor, *gains) for factor in (1 - 1e-6, 1 + 1e-6))
    assert zero_point(cell, below, biases).stable
    assert not zero_point(cell, above, biases).stable
    if cell != "lstm":
        small, far = (Gains(a_h * factor, *gains[:1], *([0.1] if gains else [])) for factor in (1 - 1e-3, 1 + 1e-3))
        assert fixed_points(small, biases, cell=cell) == []
        (C,) = fixed_points(far, biases, cell=cell)
        assert C < 0.01


@pytest.mark.proof
@pytest.mark.parametrize("cell", ["gru", "gru_reset_before", "lstm"])
def test_eigenvalues_of_the_zero_state_fill_the_disk(cell):
    """600 units: radius within 8 % of the disk's. Of an LSTM, 600 other eigenvalues are exactly 0 (corollary 5.3)."""
    states, biases = (2, {"f": 0.5, "i": -0.5}) if cell == "lstm" else (1, {"z": 0.5, "r": -0.5})
    gains = Gains(3.0, *[2.0] * (states + 1))
    module, _ = network(cell, gains, 600, 0, biases)
    zeros = (torch.zeros(1, 600, dtype=F64),) * states
    J = jacobian(cell, module.bias_ih_l0.detach()[None], module.weight_hh_l0.detach(), zeros)[0]
    eigenvalues, disk = torch.linalg.eigvals(J), zero_point(cell, gains, biases)
    distances = (eigenvalues[eigenvalues.abs() > 1e-9] - disk.centre).abs()
    assert len(distances) == 600
    assert abs(distances.max() / disk.radius - 1) < 0.08
    assert abs((distances / disk.radius).square().mean() - 0.5) < 0.05  # a uniform disk


# ---- fixed points


@pytest.mark.parametrize(("cell", "a_h", "a_r"), FIXED_POINTS)
def test_fixed_points_and_their_shaping_parameters(cell, a_h, a_r):
    gains, wanted = Gains(a_h, 7.0, a_r), numbers.FIXED_POINTS[cell][a_h, a_r]
    found = fixed_points(gains, cell=cell)
    assert len(found) == len(wanted)
    for C, (C_h, rho) in zip(found, wanted, strict=True):
        assert agrees(C, C_h)
        assert agrees(shaping(C, gains, cell=cell), rho)
        assert shaping(C, gains, cell=cell) > 1  # all of them are unstable
    assert fixed_points(Gains(a_h, 0.0, a_r), {"z": 3.0}, cell=cell) == found  # the update gate does not enter


def test_with_biases_and_variances_fixed_points_solve_their_equation():
    """Monte Carlo is too coarse; the equation is integrated on a grid of another kind."""
    gains, biases, variances = Gains(2.5, 1.0, 3.0), {"h": 0.3, "r": -0.7}, {"h": 0.2, "r": 0.5}
    x, w = normal(9, 24_001)
    found = fixed_points(gains, biases, variances)
    assert found
    for C in found:
        C_y = C * (w @ torch.sigmoid(-0.7 + (9 * C + 0.5) ** 0.5 * x).square())
        assert (w @ torch.tanh(0.3 + (6.25 * C_y + 0.2).sqrt() * x).square()).item() == pytest.approx(C, rel=1e-12)


def test_the_shaping_parameter_of_gru_with_a_variance_of_the_bias():
    """Over the three independent variables of a unit: the reset gate's, w, and the bias of h."""
    gains, C, biases, variances = Gains(2.5, 1.0, 3.0), 0.3, {"h": 0.2, "r": -0.4}, {"h": 0.5, "r": 0.3}
    x, weight = normal(7, 141)
    r = torch.sigmoid(-0.4 + (9 * C + 0.3) ** 0.5 * x)[:, None, None]
    w, bias = 2.5 * C**0.5 * x[:, None], 0.2 + 0.5**0.5 * x
    inner = (2.5 * r).square() + (3 * r * (1 - r) * w).square()
    values = torch.cosh(r * w + bias) ** -4 * inner
    wanted = torch.einsum("ijk,i,j,k->", values, weight, weight, weight).sqrt().item()
    assert shaping(C, gains, biases, variances, cell="gru") == pytest.approx(wanted, rel=1e-9)


def test_the_shaping_parameter_of_gru_is_finite_where_reset_gates_underflow():
    """The mean over the gate grows as the square root of a_r."""
    first, second = (shaping(0.2, Gains(2.5, 1.0, a_r), cell="gru") for a_r in (200.0, 800.0))
    assert 1.8 < second / first < 2


def test_of_tanh_they_are_those_of_an_elman_network():
    (C,) = fixed_points(Gains(1.5), cell="tanh")
    x, w = normal(9, 24_001)
    y = 1.5 * C**0.5 * x
    assert (w @ torch.tanh(y).square()).item() == pytest.approx(C, rel=1e-12)
    slope = (w @ (1 - torch.tanh(y).square()).square()).item()
    assert shaping(C, Gains(1.5), cell="tanh") == pytest.approx(1.5 * slope**0.5, rel=1e-12)


def test_near_the_transition_fixed_points_follow_expansions():
    """Equation 24 of Can et al.; its middle branch is sqrt(3 eps / 31), and not sqrt(eps) / 4 as printed."""
    eps = 1e-4
    for a_r in (0.1, 1.0, 2.0):
        assert fixed_points(Gains(2 + eps, 1.0, a_r))[0] == pytest.approx(4 * eps / (8 - a_r**2), rel=2e-3)
    (middle,) = fixed_points(Gains(2 + eps, 1.0, math.sqrt(2) * (2 + eps)))
    assert agrees(middle, "3.149e-3")
    assert middle == pytest.approx(math.sqrt(3 * eps / 31), rel=0.02)
    for a_r, wanted in ((3.0, "0.02205"), (4.0, "0.1095")):  # the third branch, where its expansion does not hold
        assert agrees(fixed_points(Gains(2.0, 1.0, a_r))[-1], wanted)


# ---- phases


@pytest.mark.parametrize(("cell", "a_h"), BIFURCATIONS)
def test_the_bifurcation(cell, a_h):
    found = bifurcation(a_h, cell=cell)
    assert agrees(found, numbers.BIFURCATIONS[cell][a_h])
    assert phase(Gains(a_h, 1.0, found * 0.999), cell=cell) == "zero"
    assert phase(Gains(a_h, 1.0, found * 1.001), cell=cell) == "coexistence"
    assert len(fixed_points(Gains(a_h, 1.0, found * 1.001), cell=cell)) == 2


def test_phases_without_biases():
    assert phase(Gains(1.4, 5.0, 200.0)) == "zero"  # below sqrt(2), whatever the gain of r
    assert phase(Gains(2.01, 5.0, 0.0)) == phase(Gains(2.01, 5.0, 50.0)) == "chaos"
    assert phase(Gains(0.9), cell="tanh") == "zero"
    assert phase(Gains(1.1), cell="tanh") == "chaos"
    assert len(fixed_points(Gains(2.01, 1.0, 1.0))) == 1
    assert bifurcation(1.9999) == pytest.approx(math.sqrt(8), rel=0.02)


def test_the_line_of_marginal_stability_of_pytorchs_gru():
    a_r = marginal(3.0, cell="gru")
    (C,) = fixed_points(Gains(3.0, 1.0, a_r), cell="gru")
    assert shaping(C, Gains(3.0, 1.0, a_r), cell="gru") == pytest.approx(math.sqrt(2), rel=1e-12)


@pytest.mark.parametrize("a_h", numbers.MARGINAL)
def test_the_line_of_marginal_stability(a_h):
    found = marginal(a_h)
    assert agrees(found, numbers.MARGINAL[a_h])
    gains = Gains(a_h, 1.0, found)
    assert shaping(fixed_points(gains)[-1], gains) == pytest.approx(math.sqrt(2), rel=1e-12)


# ---- pinching


def test_the_spectral_radius_of_a_fixed_point_approaches_1_at_the_rate_of_theorem_4_8():
    gains = Gains(3.0, 1.0, 1.0)
    C = fixed_points(gains)[0]
    c = pinching_rate(C, shaping(C, gains))
    assert agrees(c, "0.8388315")
    assert agrees(-c * C**0.5, "-0.517016")
    edges = {a_z: fixed_point_support(C, Gains(3.0, a_z, 1.0)).edge() for a_z in (*numbers.EDGES, 80.0, 160.0)}
    for a_z, wanted in numbers.EDGES.items():
        assert agrees(edges[a_z], wanted)
    assert agrees(math.log(edges[160.0] / edges[80.0]) / 80, "-0.516895")  # the last edge is 1e-36


@pytest.mark.parametrize("a_z", numbers.INTERCEPTS)
def test_the_intercept_of_the_boundary_at_real_part_1(a_z):
    gains = Gains(3.0, a_z, 2.0)
    C = fixed_points(gains)[0]
    y = fixed_point_support(C, gains).boundary(torch.zeros(1)).item()
    assert agrees(y, numbers.INTERCEPTS[a_z])
    if a_z == 0:
        assert y == pytest.approx(math.sqrt(shaping(C, gains) ** 2 - 1) / 2, rel=1e-12)


@pytest.mark.proof
def test_the_masses_and_the_disk_of_a_switch():
    """Equation 22, hardtanh, 600 units, a_z = 500, three seeds. One network had .487 (1 - alpha of the draw .496) at 1,
    .162 (.165) at 0, and a disk of .874 against .907 for the 97 % quantile of the other moduli."""
    for seed in range(3):
        gains = Gains(3.0, 500.0, 0.0)
        module, generator = network("gru_reset_before", gains, 600, seed)
        _, R_z, R_n = module.weight_hh_l0.detach().chunk(3)
        h = torch.randn(600, generator=generator, dtype=F64).tanh()
        for _ in range(300):
            z, y, old = torch.sigmoid(R_z @ h), R_n @ h / 2, h
            n = y.clamp(-1, 1)
            h = z * old + (1 - z) * n
        inner = ((1 - z) * (y.abs() < 1))[:, None] * R_n / 2
        J = z.diag() + inner + ((old - n) * z * (1 - z))[:, None] * R_z
        eigenvalues = torch.linalg.eigvals(J)
        C_h = old.square().mean().item()
        alpha, eta = 0.5, math.erf(1 / math.sqrt(2 * 9 / 4 * C_h))  # shares of closed gates, unsaturated candidates
        ones, zeros = ((eigenvalues - at).abs() < 0.05 for at in (1, 0))
        opened, saturated = (z > 0.5).double().mean(), ((z < 0.5) & (y.abs() > 1)).double().mean()
        assert abs(ones.double().mean() - (1 - alpha)) < 0.05
        assert abs(ones.double().mean() - opened) < 0.02
        assert abs(zeros.double().mean() - alpha * (1 - eta)) < 0.05
        assert abs(zeros.double().mean() - saturated) < 0.02
        bulk = eigenvalues[~ones & ~zeros].abs()
        assert abs(bulk.quantile(0.97) / (math.sqrt(alpha * eta) * 3 / 2) - 1) < 0.1


# ---- gains


def test_gains_are_mappings_by_name():
    gains = Gains(3.0, z=10.0, r=1.0)
    assert dict(gains) == {"h": 3.0, "z": 10.0, "r": 1.0}
    assert (gains.h, gains["z"], len(gains)) == (3.0, 10.0, 3)
    assert Gains(r=1.0, z=10.0, h=3.0) == gains
    with pytest.raises(AttributeError, match="Gains has no gain 'f'"):
        _ = gains.f
