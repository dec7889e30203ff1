"""Mean field theory, compared with numbers of another computation, and the exact solution with the population."""

import functools
import math

import pytest
import torch

from perf.dynamics import numbers
from perf.dynamics.numbers import agrees
from python_tests.tiers import quick_where
from rnnkern.analysis import Gains, fixed_points, mean_field, shaping, spectral_edge

F64 = torch.float64
POPULATION = [
    # cell, gains: C_h(0), C_h(1), C_h(5), good to .01
    ("gru_reset_before", Gains(3.0, 1.0, 10.0), (0.350, 0.325, 0.124)),
    ("gru_reset_before", Gains(3.0, 10.0, 10.0), (0.395, 0.333, 0.213)),
    ("gru_reset_before", Gains(3.0, 1.0, 1.0), (0.340, 0.336, 0.266)),
    ("gru_reset_before", Gains(3.0, 0.0, 5.0), (0.358, 0.340, 0.136)),
    ("lstm", Gains(3.0, 1.0, 1.0, 1.0), (0.0476, 0.0472, 0.0392)),
    ("lstm", Gains(3.0, 1.0, 1.0, 10.0), (0.0771, 0.0693, 0.0222)),
    ("lstm", Gains(3.0, 10.0, 1.0, 1.0), (0.103, 0.103, 0.093)),
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# ---- without gain of the update gate


@functools.cache
def exact(a_r):
    """The steady state of a GRU with a_h = 3, a_z = 0."""
    return mean_field("gru_reset_before", Gains(3.0, 0.0, a_r), population=20_000, generator=generator())


@pytest.mark.parametrize("a_r", numbers.CORRELATIONS)
def test_without_gain_of_the_update_gate_it_is_exact(a_r):
    found = exact(a_r)
    values = (*found.C[[0, 1, 5]].tolist(), found.C_phi[0].item(), found.correlation_time)
    rho = shaping(found.C[0].item(), Gains(3.0, 0.0, a_r))
    for value, wanted in zip((*values, rho), numbers.CORRELATIONS[a_r], strict=True):
        assert agrees(value, wanted), (value, wanted)
    assert found.kappa == 0.5
    assert found.C.max() <= found.C_phi[0]  # (52)


@pytest.mark.parametrize("a_r", quick_where(lambda a_r: a_r in numbers.CORRELATIONS, numbers.RADII))
def test_the_spectral_radius_without_gain_of_the_update_gate(a_r):
    """Equation 23, and the edge of the support of the same population."""
    gains = Gains(3.0, 0.0, a_r)
    radius = 0.5 + 0.5 * shaping(exact(a_r).C[0].item(), gains)
    assert agrees(radius, numbers.RADII[a_r])
    assert spectral_edge(exact(a_r).samples, gains) == pytest.approx(radius, abs=0.02)


def test_it_solves_its_equation_with_any_bias():
    """C_h of the filtered candidate: its value at lag 0 is (1 - kappa) / (1 + kappa) sum kappa^|m| C_phi(m)."""
    found = mean_field("gru_reset_before", Gains(3.0, 0.0, 2.0), {"z": 1.0}, lags=300, population=2)
    kappa = 1 / (1 + math.exp(-1))
    weights = kappa ** torch.arange(301, dtype=F64)
    sides = 2 * (weights * found.C_phi).sum() - found.C_phi[0]
    assert found.kappa == pytest.approx(kappa, rel=1e-15)
    assert found.C[0].item() == pytest.approx((1 - kappa) / (1 + kappa) * sides.item(), rel=1e-9)


def test_of_tanh_the_activity_of_the_steady_state_is_that_of_a_fixed_point():
    """In discrete time, tanh networks have no correlation between steps; their mean square is the fixed point's."""
    found = mean_field("tanh", Gains(2.0), lags=3, population=2)
    assert found.C[0].item() == pytest.approx(fixed_points(Gains(2.0), cell="tanh")[0], rel=1e-9)
    assert found.C[1:].abs().max() < 1e-9
    assert found.correlation_time == pytest.approx(0.5, abs=1e-8)
    assert mean_field("tanh", Gains(0.5), lags=1, population=2).C[0] < 1e-9


# ---- a population


def test_the_population_agrees_with_the_exact_solution():
    """A variance of 1e-30 of the update gate's bias selects the population. The bands are five standard deviations."""
    gains = Gains(3.0, 0.0, 2.0)
    wanted = exact(2.0)
    found = mean_field(
        "gru_reset_before", gains, variances={"z": 1e-30}, lags=20, population=10_000, steps=60, generator=generator()
    )
    torch.testing.assert_close(found.C, wanted.C, rtol=0, atol=0.04)
    torch.testing.assert_close(found.C_phi, wanted.C_phi, rtol=0, atol=0.04)
    assert found.variance["h"] == pytest.approx(wanted.variance["h"], rel=0.08)
    for name, pre in wanted.samples.gates.items():  # samples of both have the law of the processes
        for samples in (wanted.samples, found.samples):
            assert samples.gates[name].var().item() == pytest.approx(wanted.variance[name], rel=0.12)
        assert pre.shape == wanted.samples.old.shape == (20_000,)
    assert wanted.samples.old.square().mean().item() == pytest.approx(wanted.C[0].item(), abs=0.02)


@pytest.mark.proof
@pytest.mark.parametrize(("cell", "gains", "wanted"), POPULATION)
def test_the_population_has_the_correlations_of_another_computation(cell, gains, wanted):
    """Within .01 for seeds 0 to 2, with 20,000 units."""
    for seed in range(3):
        found = mean_field(cell, gains, lags=5, population=20_000, generator=generator(seed))
        torch.testing.assert_close(found.C[[0, 1, 5]], torch.tensor(wanted, dtype=F64), rtol=0, atol=0.01)
        if cell != "lstm":
            assert found.C[0] <= found.C_phi[0]  # (52)


def test_the_result_depends_on_the_generator_alone():
    gains = Gains(3.0, 2.0, 2.0)
    for cell in ("gru", "gru_reset_before"):
        first, second = (
            mean_field(cell, gains, lags=2, population=50, steps=10, generator=generator(3)) for _ in range(2)
        )
        assert torch.equal(first.C, second.C)
        assert torch.equal(first.samples.old, second.samples.old)
