"""The pictures of non-normal weights: drawn in a small version, all numbers lie where theory says, and the closed forms
beside them have their known values."""

import pytest
import torch

from perf import dynamics_nonnormal


@pytest.mark.proof
@pytest.mark.parametrize("draw", dynamics_nonnormal.PICTURES)
def test_small_versions_have_their_numbers_where_theory_says(draw, tmp_path):
    rows = []
    draw(tmp_path, True, rows)
    assert rows
    assert [row for row in rows if not row["least"] <= row["value"] <= row["most"]] == []
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".svg"}


@pytest.mark.parametrize(
    ("z", "rho", "steps", "wanted"),
    [(0.5, 1.2, 1, 0.61), (0.5, 1.2, 10, 1.1905557530607918), (0.7310585786300049, 1.5, 25, 64.456351)],
)
def test_singular_values_through_constant_gates(z, rho, steps, wanted):
    found = dynamics_nonnormal.constant_gate(z, rho, torch.arange(steps + 1, dtype=torch.float64))
    assert found[steps].item() == pytest.approx(wanted, rel=1e-8)
    assert found[0] == 1


def test_singular_values_through_binary_gates_are_those_of_random_matrices_and_not_eq_135_as_printed():
    generator = torch.Generator().manual_seed(0)
    units, alpha, rho = 600, 0.5, 0.9
    closed = torch.arange(units) >= alpha * units
    R = torch.randn(units, units, dtype=torch.float64, generator=generator) / units**0.5
    J = closed.double().diag() + (~closed).double()[:, None] * rho * R
    steps = torch.arange(3, dtype=torch.float64)
    found = torch.stack([torch.linalg.matrix_power(J, n).square().sum() / units for n in (0, 1, 2)])
    torch.testing.assert_close(found, dynamics_nonnormal.binary_gate(alpha, rho, steps), rtol=0, atol=0.01)
    printed = (1 - alpha) * ((alpha * rho**2) ** steps).cumsum(0)
    assert ((found - printed)[1:].abs() > 0.05).all()
