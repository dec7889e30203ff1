"""What only weights of continuous-time recurrences promise: their timescales, and exact steps."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from python_tests.samples.parametrizations import RATES, originals
from rnnkern.parametrizations import reset_parameters, stable, zero_order_hold

F64 = torch.float64


def made(*shape, stable_map="exp", **options):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.empty(shape, dtype=F64))
    return stable(module, "weight", stable_map, **options)


@pytest.mark.parametrize("shape", [(2000,), (40, 40)])
@pytest.mark.parametrize("stable_map", RATES)
def test_it_begins_with_its_timescales(stable_map, shape):
    module = made(*shape, stable_map=stable_map, timescales=(2.0, 50.0))
    W = module.weight.detach()
    taus = -1 / (W if len(shape) == 1 else torch.linalg.eigvalsh(W))
    assert taus.min() > 2 * (1 - 1e-9)
    assert taus.max() < 50 * (1 + 1e-9)
    assert abs((taus < 10).double().mean() - 0.5) < 0.3  # log-uniform with median 10
    reset_parameters(module, "weight")
    assert not torch.equal(module.weight, W)


def test_the_step_is_exact_where_forward_euler_diverges():
    """dt |g| = 3: the exact state decays; that of Euler's method doubles and changes its sign at every step."""
    module, dt = made(1, dt=3.0), 3.0
    module.weight = torch.tensor([math.exp(-dt)], dtype=F64)
    g = module.parametrizations.weight[0].rates(*originals(module))
    torch.testing.assert_close(g, torch.tensor([-1.0], dtype=F64))
    times = torch.arange(1, 9, dtype=F64)
    torch.testing.assert_close(module.weight**times, (-dt * times).exp())


def test_zero_order_hold():
    w = torch.tensor([0.0, -1e-9, -1e-3, -0.4999, -0.5001, -0.6, -40.0, 0.3], dtype=F64, requires_grad=True)
    factor, integral = zero_order_hold(w, 0.1)
    exact = [0.1 if x == 0 else math.expm1(0.1 * x) / x for x in w.tolist()]
    torch.testing.assert_close(integral, torch.tensor(exact, dtype=F64), rtol=1e-14, atol=0)
    torch.testing.assert_close(factor, (0.1 * w).exp())
    assert gradcheck(lambda w: zero_order_hold(w, 0.1), (w,))
    assert gradgradcheck(lambda w: zero_order_hold(w, 0.1), (w,))
