"""The pictures of Lyapunov spectra and non-normal weights: in small versions, all numbers lie where theory says."""

import pytest
import torch

from perf import dynamics_nonnormal
from rnnkern.analysis._slow import binary_gate


@pytest.mark.proof
@pytest.mark.parametrize("draw", dynamics_nonnormal.PICTURES)
def test_small_versions_have_their_numbers_where_theory_says(draw, tmp_path):
    rows = []
    draw(tmp_path, True, rows)
    assert rows
    assert [row for row in rows if not row["least"] <= row["value"] <= row["most"]] == []
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".svg"}


def test_singular_values_through_binary_gates_are_those_of_random_matrices_and_not_eq_135_as_printed():
    generator = torch.Generator().manual_seed(0)
    units, alpha, rho = 600, 0.5, 0.9
    closed = torch.arange(units) >= alpha * units
    R = torch.randn(units, units, dtype=torch.float64, generator=generator) / units**0.5
    J = closed.double().diag() + (~closed).double()[:, None] * rho * R
    found = torch.stack([torch.linalg.matrix_power(J, n).square().sum() / units for n in (0, 1, 2)])
    wanted = torch.tensor([binary_gate(alpha, rho, n) for n in range(3)], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.01)
    printed = (1 - alpha) * ((alpha * rho**2) ** torch.arange(3)).cumsum(0)
    assert ((found - printed)[1:].abs() > 0.05).all()
