"""Filters of the input projection: their equations, the effect of momentum on the dynamics, layouts, other options."""

import math

import pytest
import torch

from rnnkern.nn import GRU, LSTM, RNN, MomentumLSTM, MomentumRNN
from rnnkern.nn.filters import NAG, Adam, Momentum, RMSprop
from rnnkern.ops._scan.moment_filter import EPS

T, B, I, H = 9, 3, 4, 6  # noqa: E741
F64 = torch.float64


def joint(module, x, h, v):
    """One step of (h, v) and its Jacobian."""

    def step(h, v):
        _, (h_n, v_n) = module(x.view(1, 1, -1), (h.view(1, 1, -1), v.view(1, 1, -1)))
        return torch.cat([h_n.flatten(), v_n.flatten()])

    J = torch.cat(torch.autograd.functional.jacobian(step, (h, v)), dim=1)
    return step(h, v).detach().split(H), J


def test_momentum_adds_h_eigenvalues_mu_and_h_exponents_ln_mu():
    """This holds exactly for the joint state (h, v), in addition to the eigenvalues of D R."""
    module, mu = MomentumRNN(I, H, mu=0.7, dtype=F64), 0.7
    h, v = torch.randn(2, H, dtype=F64)
    Q, exponents = torch.eye(2 * H, dtype=F64), torch.zeros(2 * H, dtype=F64)
    for _ in range(50):
        (h, v), J = joint(module, torch.randn(I, dtype=F64), h, v)
        D = torch.diag(1 - h**2)
        eigenvalues = torch.linalg.eigvals(J)
        is_mu = (eigenvalues - mu).abs() < 1e-6
        assert is_mu.sum() == H
        wanted = torch.linalg.eigvals(D @ module.weight_hh_l0.detach())
        distances = (eigenvalues[~is_mu].unsqueeze(1) - wanted).abs()
        assert distances.amin(0).max() < 1e-8
        Q, stretch = torch.linalg.qr(J @ Q)
        exponents += stretch.diagonal().abs().log() / 50
    torch.testing.assert_close(exponents[H:], torch.full((H,), math.log(mu), dtype=F64), rtol=1e-12, atol=0)
    assert (exponents[:H] - math.log(mu)).abs().min() > 1e-3


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
    one, other = MomentumLSTM(I, H, mu=0.3, s=0.9, dtype=F64), LSTM(I, H, filter=Momentum(0.3, 0.9), dtype=F64)
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(x), other(x))


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
