"""Filters of the input projection: what equals what, and other options. Their equations are in test_equations.py."""

import math

import pytest
import torch

from rnnkern.nn import GRU, LSTM, RNN
from rnnkern.nn.filters import NAG, Adam, Momentum, RMSprop
from rnnkern.ops._scan.moment_filter import EPS

T, B, I, H = 9, 3, 4, 6  # noqa: E741
F64 = torch.float64


def test_the_slope_at_zero_is_ten_times_the_step():
    """With the published epsilon of 1e-16 it would be 6e7 for s = 0.6."""
    module = RNN(1, 1, nonlinearity="identity", bias=False, filter=Adam(0.6, 0.6, 0.9), dtype=F64)
    module.weight_ih_l0.data.fill_(1)
    x = torch.zeros(1, 1, 1, dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(module(x)[0].sum(), x)
    assert slope.item() == pytest.approx(0.6 / math.sqrt(EPS)) == pytest.approx(6.0)


def test_what_equals_what():
    x = torch.randn(T, B, I, dtype=F64)
    for cls, first, second in (
        (LSTM, {}, {"filter": Momentum(0.0, 1.0)}),
        (GRU, {"filter": RMSprop(0.5, 0.9)}, {"filter": Adam(0.0, 0.5, 0.9)}),
        (RNN, {"filter": Momentum(0.0, 0.5)}, {"filter": NAG(0.5, 1)}),
    ):
        one, other = (cls(I, H, dtype=F64, **options) for options in (first, second))
        other.load_state_dict(one.state_dict())
        torch.testing.assert_close(one(x)[0], other(x)[0])


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 2},
        {"proj_size": 3},
        {"zoneout": 0.2, "recurrent_dropout": 0.3, "num_layers": 2, "dropout": 0.2},
        {"recurrent_grad_dropout": 0.5, "bidirectional": True},
    ],
)
def test_other_options_stay(options):
    """In training and with the same seed, a filter without effect changes nothing."""
    plain, module = LSTM(I, H, dtype=F64, **options), LSTM(I, H, dtype=F64, filter=Momentum(0.0, 1.0), **options)
    module.load_state_dict(plain.state_dict())
    results = []
    for each in (plain, module):
        torch.manual_seed(1)
        output, _ = each(torch.ones(T, B, I, dtype=F64))
        results.append((output, torch.autograd.grad(output.square().sum(), list(each.parameters()))))
    torch.testing.assert_close(*results)
