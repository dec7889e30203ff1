"""LRU: its equations, the initial eigenvalues, layouts, state, resets, and general behavior of modules."""

import math

import pytest
import torch

from rnnkern.nn import LRU

T, B, I, N = 9, 3, 4, 6  # noqa: E741
F64 = torch.float64


def layer(**options):
    return LRU(I, N, **{"dtype": F64, "r_min": 0.5} | options)


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


def test_a_variance_of_one_stays_one():
    """The purpose of gamma: for white noise of variance 1, the variance of each unit is that of its row of B, for any
    eigenvalue."""
    module = LRU(1, 64, r_min=0.5, r_max=0.9, dtype=F64)
    gamma = (1 - module.eigenvalues().abs().square()).sqrt()
    h = torch.randn(400, 64, dtype=torch.complex128)
    for _ in range(30):
        h = module.eigenvalues() * h + gamma * torch.randn(400, 64, dtype=torch.complex128)
    assert abs(h.abs().square().mean() - 1) < 0.05


def test_no_value_of_a_parameter_leads_out_of_the_unit_disc():
    module = layer(dtype=torch.float32)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(10 * torch.randn(p.shape))
    assert (module.eigenvalues().abs() <= 1).all()
    found = torch.autograd.grad(module(torch.randn(T, B, I))[0].square().mean(), list(module.parameters()))
    assert all(grad.isfinite().all() for grad in found)
