"""Lyapunov exponents of layers whose exponents are known, in closed form or by dense Jacobians."""

import math

import pytest
import torch

import rnnkern
from rnnkern import reference
from rnnkern.analysis import Gains, jacobian, kaplan_yorke, lyapunov_spectrum
from rnnkern.nn.init import gate_variance_
from rnnkern.ops import recurrence_tangent
from rnnkern.testing import peak_bytes

F64 = torch.float64


def elman(R, nonlinearity="identity"):
    """A layer without input and biases."""
    rnn = rnnkern.nn.RNN(1, len(R), nonlinearity=nonlinearity, bias=False, dtype=F64)
    with torch.no_grad():
        rnn.weight_hh_l0.copy_(R)
    return rnn


def random_layer(cls, gains, units, seed, **options):
    rnn = getattr(rnnkern.nn, cls)(1, units, bias=False, dtype=F64, **options)
    generator = torch.Generator().manual_seed(seed)
    gate_variance_(rnn, gains, generator=generator)
    return rnn, torch.randn(1, 1, units, dtype=F64, generator=generator)


# ---- exponents that are known


def test_of_an_orthogonal_weight_they_are_zero():
    torch.manual_seed(0)
    R = torch.linalg.qr(torch.randn(30, 30, dtype=F64)).Q
    for every in (1, 7, "auto"):
        assert lyapunov_spectrum(elman(R), steps=200, every=every).exponents.abs().max() <= 1e-12


@pytest.mark.parametrize("cell", ["tanh", "lstm", "gru", "gru_reset_before"])
def test_all_of_them_sum_to_the_logarithms_of_the_determinants(cell):
    torch.manual_seed(1)
    rnn = {
        "tanh": lambda: rnnkern.nn.RNN(3, 12, dtype=F64),
        "lstm": lambda: rnnkern.nn.LSTM(3, 8, dtype=F64),
        "gru": lambda: rnnkern.nn.GRU(3, 12, dtype=F64),
        "gru_reset_before": lambda: rnnkern.nn.GRU(3, 12, reset_gate="before", dtype=F64),
    }[cell]()
    x, size = torch.randn(70, 2, 3, dtype=F64), rnn.hidden_size
    state = [torch.randn(2, size, dtype=F64) for _ in range(2 if cell == "lstm" else 1)]
    hx = tuple(s[None] for s in state)
    found = lyapunov_spectrum(rnn, x, hx if cell == "lstm" else hx[0], every=1)
    total = torch.zeros(2, dtype=F64)
    with torch.no_grad():
        u = torch.nn.functional.linear(x, rnn.weight_ih_l0, rnn.bias_ih_l0)
        for t in range(len(u)):
            J = jacobian(cell, u[t], rnn.weight_hh_l0, state, bias=rnn.bias_hh_l0)
            total += torch.linalg.slogdet(J).logabsdet
            state = reference.recurrence(cell, u[t : t + 1], rnn.weight_hh_l0, state, bias=rnn.bias_hh_l0)[1]
    assert not found.lost.any()
    torch.testing.assert_close(found.exponents.sum(-1), total / len(u), rtol=1e-12, atol=0)


MEAN_FIELD = {1.5: 0.0652172, 2.0: 0.1547242, 3.0: 0.3102493, 5.0: 0.5324279}
"""Of infinitely many tanh units with gain g: lambda_1 = ln(g^2 E phi'^2) / 2 at q = g^2 E tanh(x sqrt q)^2."""


@pytest.mark.parametrize("gain", [1.5, 2.0, 3.0, pytest.param(5.0, marks=pytest.mark.proof)])
def test_the_largest_exponent_of_a_random_tanh_network_is_that_of_the_mean_field(gain):
    rnn, h0 = random_layer("RNN", Gains(h=gain), 400, seed=0)
    found = lyapunov_spectrum(rnn, hx=h0, steps=800, count=1, warmup=200).exponents.item()
    assert abs(found - MEAN_FIELD[gain]) <= 0.025


def test_a_lost_rank_is_reported_and_the_other_exponents_are_right():
    """At c = 0 an LSTM's h and c change together: c' by c is I/2 + R_g/4, with h' = c'/2."""
    torch.manual_seed(2)
    rnn = rnnkern.nn.LSTM(1, 6, bias=False, dtype=F64)
    found = lyapunov_spectrum(rnn, steps=4, every=1)
    assert found.exponents.isinf().sum() == 6
    assert found.lost.sum() == 4 * 6
    u, R = torch.zeros(1, 1, 24, dtype=F64), rnn.weight_hh_l0.detach()
    log_r = recurrence_tangent("lstm", u, R, found.state, found.tangents, every=1).log_r[0, 0]
    wanted = torch.linalg.slogdet(0.5 * torch.eye(6, dtype=F64) + 0.25 * R[12:18]).logabsdet
    assert log_r.isinf().sum() == 6
    torch.testing.assert_close(log_r[log_r.isfinite()].sum(), wanted, rtol=1e-9, atol=0)


# ---- what the exponents depend on


def test_leading_exponents_do_not_depend_on_how_often_tangents_are_orthonormalized():
    rnn, h0 = random_layer("GRU", Gains(h=3.0, z=1.0, r=1.0), 60, seed=0, reset_gate="before")
    found = {k: lyapunov_spectrum(rnn, hx=h0, steps=200, every=k) for k in (1, 2, 5, "auto")}
    for k in (2, 5, "auto"):
        torch.testing.assert_close(found[k].exponents[:, :10], found[1].exponents[:, :10], rtol=0, atol=1e-12)
    torch.testing.assert_close(found["auto"].exponents, found[1].exponents, rtol=0, atol=1e-8)
    assert found["auto"].every > 1


def test_a_spread_of_rates_makes_auto_orthonormalize_at_every_step():
    R = torch.tensor([1.0, 1e-6], dtype=F64).diag()
    assert lyapunov_spectrum(elman(R), steps=200).every == 1
    assert lyapunov_spectrum(elman(torch.eye(2, dtype=F64)), steps=400).every == 64


def test_blocks_and_continued_runs_are_one_run():
    torch.manual_seed(4)
    rnn, x = rnnkern.nn.GRU(2, 7, dtype=F64), torch.randn(150, 3, 2, dtype=F64)
    whole = lyapunov_spectrum(rnn, x, count=4, every=1)
    first = lyapunov_spectrum(rnn, x[:64], count=4, every=1)
    second = lyapunov_spectrum(rnn, x[64:], first.state[0][None], every=1, tangents=first.tangents)
    assert [s.shape for s in (whole.log_r, first.log_r, second.log_r)] == [(3, 3, 4), (1, 3, 4), (2, 3, 4)]
    torch.testing.assert_close(torch.cat([first.log_r, second.log_r]), whole.log_r, rtol=0, atol=0)
    warm = lyapunov_spectrum(rnn, x, count=4, every=1, warmup=64)
    torch.testing.assert_close(warm.exponents, second.exponents, rtol=0, atol=0)


def test_it_reads_the_modules_of_torch_in_either_precision():
    torch.manual_seed(8)
    rnn, x = torch.nn.LSTM(2, 5), torch.randn(60, 1, 2)
    single = lyapunov_spectrum(rnn, x, count=3).exponents
    double = lyapunov_spectrum(rnn.double(), x.double(), count=3).exponents
    torch.testing.assert_close(single, double, rtol=0, atol=1e-4)


def test_it_does_not_leave_the_trajectory_in_memory():
    """The tensors of 4,000 steps of h and c alone would be 2 MB; the blocks are 64 steps long."""
    rnn = rnnkern.nn.LSTM(1, 32)
    short, long = (peak_bytes(lambda n=n: lyapunov_spectrum(rnn, steps=n, count=4, every=64)) for n in (256, 4096))
    assert 0 < long <= short + 200_000


# ---- the dimension of an attractor


@pytest.mark.parametrize(
    ("exponents", "n", "wanted"),
    [
        ([0.5, 0.0, -1.0], None, 2.5),
        ([-1.0, 0.5, 0.0], None, 2.5),
        ([-0.1, -0.2], None, 0.0),
        ([0.3, -0.1], 2, 2.0),
        ([0.3, -math.inf], None, 1.0),
        ([0.0, -1.0], None, 1.0),
    ],
)
def test_kaplan_yorke(exponents, n, wanted):
    assert kaplan_yorke(torch.tensor(exponents), n).item() == pytest.approx(wanted, rel=1e-6)


def test_kaplan_yorke_of_a_spectrum_asks_for_more_exponents():
    chaotic, h0 = random_layer("RNN", Gains(h=3.0), 50, seed=0)
    with pytest.raises(ValueError, match="n = 50 of them, got 2"):
        kaplan_yorke(lyapunov_spectrum(chaotic, hx=h0, steps=100, count=2, warmup=50))
    assert 2 < kaplan_yorke(lyapunov_spectrum(chaotic, hx=h0, steps=100, warmup=50)) < 50
