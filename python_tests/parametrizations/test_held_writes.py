"""Writes that do not change a tensor's version, such as to `parameter.data`: the weight follows them, as with torch's
own parametrizations."""

import copy

import pytest
import torch

import rnnkern
from python_tests.parametrizations.linear import N, X, move, plain, skew_of
from rnnkern.parametrizations import _held as held
from rnnkern.parametrizations import orthogonal

NETWORKS = {
    "exp": lambda: rnnkern.nn.ExpRNN(2, N),
    "cayley": lambda: rnnkern.nn.CayleyRNN(2, N),
    "schur": lambda: rnnkern.nn.NonNormalRNN(2, N),
    "householder": lambda: rnnkern.nn.HouseholderRNN(2, N),
    "givens": lambda: rnnkern.nn.EURNN(2, N, fused=False),
    "band": lambda: rnnkern.nn.SpectralRNN(2, N),
}


@pytest.fixture(params=["compared", "by the rule of a GPU"])
def rule(request, monkeypatch):
    if request.param != "compared":
        monkeypatch.setattr(held, "comparable", lambda x: False)
    return request.param


def loss_of(module):
    return module(torch.ones(5, 3, 2))[0].square().mean()


def written(module, update):
    for p in module.parameters():
        p.data.add_(update(p), alpha=-0.5)


def train(module, step, count=4):
    """Gradient descent without an optimizer."""
    for _ in range(count):
        module.zero_grad()
        loss_of(module).backward()
        step(module)
    return [p.detach().clone() for p in module.parameters()]


@torch.no_grad()
def counted(module):
    for p in module.parameters():
        p.add_(p.grad, alpha=-0.5)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_descent_through_data(make, rule):
    module = make()
    wanted = train(copy.deepcopy(module), counted)
    found = train(module, lambda module: written(module, lambda p: p.grad))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_descent_through_numpy(linear):
    """Writes to a NumPy array that shares the memory do not change the version either."""
    before = linear.weight.detach().clone()
    skew_of(linear).detach().numpy()[...] *= 2
    assert not torch.equal(linear.weight, before)
    torch.testing.assert_close(linear.weight, plain(linear))


@pytest.mark.parametrize("graph", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_an_average_that_is_swapped_in(make, graph, rule):
    module, average = make(), make()
    loss_of(module).backward()
    wanted = loss_of(average)
    for p, ema in zip(
        (*module.parameters(), *module.buffers()), (*average.parameters(), *average.buffers()), strict=True
    ):
        p.data.copy_(ema)
    with torch.set_grad_enabled(graph):
        torch.testing.assert_close(loss_of(module), wanted, rtol=0, atol=0)


def test_the_first_step_away_from_zero_through_data(rule):
    """At A = 0 nothing is computed, and this fact is cached too."""
    linear = orthogonal(torch.nn.Linear(N, N), "weight")
    linear(X).sum().backward()
    skew_of(linear).data.add_(torch.randn(N, N))
    torch.testing.assert_close(linear.weight, plain(linear))


def test_without_gradients_a_gpu_holds_nothing(linear, monkeypatch):
    monkeypatch.setattr(held, "comparable", lambda x: False)
    with torch.no_grad():
        first = linear.weight
        skew_of(linear).data.mul_(2)
        assert not torch.equal(linear.weight, first)
        with torch.nn.utils.parametrize.cached():
            assert linear.weight is linear.weight


def test_with_gradients_a_gpu_shares_one_value_until_a_backward(linear, monkeypatch):
    monkeypatch.setattr(held, "comparable", lambda x: False)
    first = linear.weight
    assert linear.weight is first
    linear(X).sum().backward()
    second = linear.weight
    assert second is not first
    move(linear)
    torch.testing.assert_close(linear.weight, plain(linear))
