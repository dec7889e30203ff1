"""Spectral support of Jacobians, compared with formulas as printed and with eigenvalues of networks."""

import math

import pytest
import torch

from perf.dynamics.networks import LAYERS, steady
from rnnkern.analysis import (
    Gains,
    Support,
    UnitSamples,
    spectral_boundary,
    spectral_edge,
    spectral_function,
    spectral_support,
    unit_samples,
)

F64 = torch.float64
CELLS = {
    "tanh": Gains(1.5),
    "gru": Gains(3.0, 5.0, 2.0),
    "gru_reset_before": Gains(3.0, 5.0, 2.0),
    "lstm": Gains(3.0, 2.0, 1.0, 4.0),
}


def prime(gate):
    return gate * (1 - gate)


def naive(samples, gains, points):
    """S with z and f in place of their pre-activations."""
    a, s = dict(gains), {name: torch.sigmoid(x) for name, x in samples.gates.items()}
    old, new, n_slope = samples.old, samples.new, 1 - torch.tanh(samples.gates["h"]).square()
    distance = (points[:, None] - s["f" if "f" in s else "z"]).abs().square() if len(s) > 1 else None
    if samples.cell == "tanh":
        return a["h"] ** 2 * n_slope.square().mean() / points.abs().square() - 1
    if samples.cell == "lstm":
        q = (a["o"] * prime(s["o"]) * torch.tanh(new)).square().mean()
        inner = (a["f"] * old * prime(s["f"])).square() + (a["h"] * s["i"] * n_slope).square()
        inner += (a["i"] * prime(s["i"]) * torch.tanh(samples.gates["h"])).square()
        p = (s["o"] * (1 - torch.tanh(new).square())).square() * inner
        return q / points.abs().square() + (p / distance).mean(1) - 1
    weight = (a["z"] * prime(s["z"]) * (old - new)).square()
    if samples.cell == "gru":
        through = (a["h"] * s["r"]).square() + (a["r"] * prime(s["r"]) * samples.product).square()
        weight = weight + ((1 - s["z"]) * n_slope).square() * through
    else:
        of_reset = s["r"].square().mean() + a["r"] ** 2 * prime(s["r"]).square().mean() * old.square().mean()
        rho2 = a["h"] ** 2 * n_slope.square().mean() * of_reset
        weight = weight + (1 - s["z"]).square() * rho2
    return (weight / distance).mean(1) - 1


def drawn(cell, seed=0, units=300):
    generator = torch.Generator().manual_seed(seed)
    return unit_samples(LAYERS[cell](units), steps=3, generator=generator)


# ---- formulas


@pytest.mark.parametrize("cell", CELLS)
def test_the_function_the_boundary_and_the_edge_follow_the_formulas(cell):
    torch.manual_seed(0)
    samples, gains = drawn(cell), CELLS[cell]
    points = torch.complex(torch.linspace(-1, 2, 31, dtype=F64) + 1e-3, torch.linspace(0.3, 1.1, 31, dtype=F64))
    torch.testing.assert_close(spectral_function(samples, gains, points), naive(samples, gains, points))
    x = torch.linspace(-0.6, 0.9, 31, dtype=F64)
    y = spectral_boundary(samples, gains, x)
    found = naive(samples, gains, torch.complex(x, y))[y > 0]
    assert len(found) > 3
    torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-11)
    beyond = torch.complex(x[y == 0], torch.full_like(x[y == 0], 1e-3))
    assert (naive(samples, gains, beyond) < 0).all()
    edge = torch.tensor([spectral_edge(samples, gains)], dtype=torch.complex128)
    assert abs(naive(samples, gains, edge).item()) < 1e-9
    assert (naive(samples, gains, edge + torch.linspace(1e-6, 3, 50)) < 0).all()


def test_near_1_the_support_keeps_its_digits():
    """With one unit, (1 + epsilon t)^2 = a exactly. In terms of lambda and z, both ends would round to 1."""
    t = torch.tensor([1e20], dtype=F64)
    support = Support(torch.tensor([4.0], dtype=F64), t)
    assert support.edge() == pytest.approx(1e-20, rel=1e-12)
    y = support.boundary(torch.zeros(1, dtype=F64))
    torch.testing.assert_close(y, torch.tensor([math.sqrt(3) * 1e-20], dtype=F64), rtol=1e-12, atol=0)
    assert Support(torch.tensor([0.25], dtype=F64), t).edge() == pytest.approx(-0.5e-20, rel=1e-12)
    assert Support(torch.zeros(3, dtype=F64), t.expand(3)).edge() == -1
    saturated = UnitSamples("gru", *(lambda x: (x, {"h": x, "z": 1e4 + x, "r": x}, x, x))(torch.zeros(4, dtype=F64)))
    assert spectral_function(saturated, CELLS["gru"], torch.tensor([0.5])).isfinite().all()


def test_many_points_and_units_are_evaluated_in_chunks():
    samples = drawn("gru", units=3000)
    points = torch.linspace(-1, 1.5, 1000, dtype=F64) + 0.3j
    found = spectral_function(samples, CELLS["gru"], points)
    torch.testing.assert_close(found[::100], spectral_function(samples, CELLS["gru"], points[::100]))


# ---- networks


def test_a_small_network_of_each_cell_lies_in_its_support():
    """200 units, of LSTMs 100: at most .05 of the eigenvalues outside, and the edge near the spectral radius."""
    for cell, gains in CELLS.items():
        network = steady(cell, gains, 100 if cell == "lstm" else 200, 0, 100)
        support = spectral_support(network.samples, gains)
        assert (support.function(network.eigenvalues - 1) < 0).double().mean() <= 0.05
        assert abs(1 + support.edge() - network.eigenvalues.abs().max()) < 0.2


# ---- samples


def test_samples_of_a_network_are_the_values_of_its_last_step():
    torch.manual_seed(0)
    for cell in CELLS:
        layer = LAYERS[cell](5)
        x = torch.randn(4, 2, 1, dtype=F64)
        found = unit_samples(layer, x)
        _, state = layer(x)
        _, before = layer(x[:-1])
        h, old = (pair[0] if cell == "lstm" else pair for pair in (state, before))
        c, old_c = (pair[1] if cell == "lstm" else pair for pair in (state, before))
        s = {name: torch.sigmoid(value) for name, value in found.gates.items()}
        torch.testing.assert_close(found.old, old_c.detach().flatten())
        if cell == "lstm":
            torch.testing.assert_close(found.new, c.detach().flatten())
            wanted = s["o"] * torch.tanh(found.new)
        elif cell == "tanh":
            wanted = found.new
        else:
            torch.testing.assert_close(found.new, torch.tanh(found.gates["h"]))
            wanted = s["z"] * found.old + (1 - s["z"]) * found.new
        torch.testing.assert_close(wanted, h.detach().flatten())
        if cell == "gru":
            R, b = layer.weight_hh_l0.detach()[10:], layer.bias_hh_l0.detach()[10:]
            torch.testing.assert_close(found.product, (old[0].detach() @ R.T + b).flatten())
