"""LRU: how the eigenvalues begin, and that they stay in the unit disc. Its equation is in test_equations.py."""

import math

import pytest
import torch

from rnnkern.nn import LRU

T, B, I, N = 9, 3, 4, 6  # noqa: E741
F64 = torch.float64


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.9, 0.999), (0.5, 0.5)])
def test_it_begins_on_the_ring(low, high):
    module = LRU(1, 4000, r_min=low, r_max=high, max_phase=math.pi / 10, dtype=F64)
    factors = module.eigenvalues().detach()
    moduli, angles = factors.abs(), factors.angle()
    assert ((moduli >= low - 1e-12) & (moduli <= high + 1e-12)).all()
    assert ((angles > 0) & (angles < math.pi / 10)).all()
    assert abs(angles.mean() - math.pi / 20) < 0.01
    middle = math.sqrt((low**2 + high**2) / 2)  # the radius that divides the area of the ring in half
    assert low == high or abs((moduli < middle).double().mean() - 0.5) < 0.05


def test_no_value_of_a_parameter_leads_out_of_the_unit_disc():
    module = LRU(I, N, r_min=0.5)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(10 * torch.randn(p.shape))
    assert (module.eigenvalues().abs() <= 1).all()
    found = torch.autograd.grad(module(torch.randn(T, B, I))[0].square().mean(), list(module.parameters()))
    assert all(grad.isfinite().all() for grad in found)
