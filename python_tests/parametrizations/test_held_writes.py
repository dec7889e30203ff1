"""Weights follow writes that do not change a tensor's version, such as to `p.data`, over all parametrizations."""

import copy

import pytest
import torch

from python_tests.samples.parametrizations import ROWS, moved, originals, plain, registered
from rnnkern.parametrizations import _held as held

rows = pytest.mark.parametrize("name", ROWS)


@pytest.fixture(params=["compared", "by the rule of a GPU"])
def rule(request, monkeypatch):
    if request.param != "compared":
        monkeypatch.setattr(held, "comparable", lambda x: False)
    return request.param


@torch.no_grad()
def counted(p):
    p.add_(p.grad, alpha=-0.5)


def written(p):
    p.data.add_(p.grad, alpha=-0.5)


@rows
@pytest.mark.sampled
def test_descent_through_data(name, rule):
    """Gradient descent without an optimizer, from values at which some weights need no computation."""
    module = registered(name)
    found = []
    for model, update in ((copy.deepcopy(module), counted), (module, written)):
        for _ in range(4):
            model.zero_grad()
            model.weight.abs().square().sin().sum().backward()
            for p in originals(model):
                update(p)
        found.append(originals(model))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("graph", [True, False], ids=["grad", "no_grad"])
@rows
@pytest.mark.sampled
def test_an_average_that_is_swapped_in(name, graph, rule):
    module, average = moved(registered(name)), moved(registered(name))
    module.weight.abs().sum().backward()
    for p, ema in zip(
        (*module.parameters(), *module.buffers()), (*average.parameters(), *average.buffers()), strict=True
    ):
        p.data.copy_(ema)
    with torch.set_grad_enabled(graph):
        torch.testing.assert_close(module.weight, average.weight, rtol=0, atol=0)


def test_descent_through_numpy(linear):
    """Writes to a NumPy array that shares the memory do not change the version either."""
    before = linear.weight.detach().clone()
    originals(linear)[0].detach().numpy()[...] *= 2
    assert not torch.equal(linear.weight, before)
    torch.testing.assert_close(linear.weight, plain("exp", linear))


def test_without_gradients_a_gpu_holds_nothing(linear, monkeypatch):
    monkeypatch.setattr(held, "comparable", lambda x: False)
    with torch.no_grad():
        first = linear.weight
        originals(linear)[0].data.mul_(2)
        assert not torch.equal(linear.weight, first)
        with torch.nn.utils.parametrize.cached():
            assert linear.weight is linear.weight


def test_with_gradients_a_gpu_shares_one_value_until_a_backward(linear, monkeypatch):
    monkeypatch.setattr(held, "comparable", lambda x: False)
    first = linear.weight
    assert linear.weight is first
    linear(torch.randn(3, 6)).sum().backward()
    assert linear.weight is not first
    moved(linear)
    torch.testing.assert_close(linear.weight, plain("exp", linear))
