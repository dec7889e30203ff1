"""A weight is computed once per optimizer step, and all users get the value and the gradients of the equation."""

import threading
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import rnnkern
from python_tests.samples.parametrizations import originals, plain
from rnnkern import ops
from rnnkern.parametrizations import _held as held

N = 6
X = torch.randn(3, N, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def computed(monkeypatch):
    """Counts how often the exponential and its gradient are computed."""
    counts = {"values": 0, "gradients": 0}
    skew_exp, gradients = ops.skew_exp, held._Computation.gradients

    def value(*args, **kwargs):
        counts["values"] += 1
        return skew_exp(*args, **kwargs)

    def gradient(*args):
        counts["gradients"] += 1
        return gradients(*args)

    monkeypatch.setattr(ops, "skew_exp", value)
    monkeypatch.setattr(held._Computation, "gradients", gradient)
    return counts


def test_once_for_all_steps_layers_and_forwards(linear, computed):
    optimiser = torch.optim.SGD([originals(linear)[0]], 0.1)
    for updates in (1, 2):
        h = X
        for _ in range(5):
            h = torch.tanh(linear(h))
        (h + linear(X)).sum().backward()
        linear(X)
        with torch.no_grad():
            linear(X)
        assert computed == {"values": updates, "gradients": updates}
        optimiser.step()


def test_once_for_every_direction_and_chunk_of_a_network(computed):
    rnn = rnnkern.nn.ExpRNN(2, N, 2, bidirectional=True)
    with torch.no_grad():
        for parametrized in rnn.parametrizations.values():
            parametrized.original.uniform_()
    _, state = rnn(torch.randn(3, 2, 2))
    rnn(torch.randn(3, 2, 2), state)[0].sum().backward()
    assert computed == {"values": 4, "gradients": 4}


def gradients_of(module, run):
    module.zero_grad()
    run()
    return [p.grad.clone() for p in module.parameters()]


def losses(weight):
    return (X @ weight.mT).sin().sum(), (X @ weight).square().sum()


def two_pairs(weight):
    for k in range(2):
        losses(weight())[k].backward()


def two_backwards(weight):
    first, second = (losses(weight())[k] for k in range(2))
    first.backward()
    second.backward()


def retained(weight):
    loss = sum(losses(weight()))
    loss.backward(retain_graph=True)
    loss.backward()


def after(mode, weight):
    with mode():
        weight()
    sum(losses(weight())).backward()


def checkpointed(before, weight):
    """With another loss before the backward pass that runs the checkpoint again, or after it."""
    loss = sum(losses(weight())) if before else 0
    again = checkpoint(lambda x: sum(losses(weight())) + x, torch.zeros((), requires_grad=True), use_reentrant=False)
    (loss + again).backward()
    if not before:
        sum(losses(weight())).backward()


def saved_elsewhere(weight):
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        sum(losses(weight())).backward()


RUNS = {
    "two pairs": two_pairs,
    "two backward passes": two_backwards,
    "a retained graph": retained,
    "after inference_mode": partial(after, torch.inference_mode),
    "after no_grad": partial(after, torch.no_grad),
    "a checkpoint": partial(checkpointed, True),
    "a checkpoint first": partial(checkpointed, False),
    "saved elsewhere": saved_elsewhere,
}


@pytest.mark.parametrize("run", RUNS)
def test_gradients_are_the_equation_s(run, linear, computed):
    linear.bias = None
    wanted = gradients_of(linear, lambda: RUNS[run](lambda: plain("exp", linear)))
    found = gradients_of(linear, lambda: RUNS[run](lambda: linear.weight))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert computed["values"] <= 1 + run.startswith("after")  # without gradients nothing is cached


def test_one_tensor_for_all_who_ask(linear):
    weight = linear.weight
    assert linear.weight is weight
    with torch.no_grad():
        assert not linear.weight.requires_grad
        assert linear.weight.data_ptr() == weight.data_ptr()


def loaded(assign, module):
    state = {name: x + 1 if "original" in name else x for name, x in module.state_dict().items()}
    module.load_state_dict(state, assign=assign)


CHANGES = {
    "in place": lambda module: originals(module)[0].mul_(2),
    "of a view": lambda module: originals(module)[0][-1].add_(1),
    "through a copy": lambda module: originals(module)[0].detach().mul_(2),
    "another memory": lambda module: setattr(originals(module)[0], "data", torch.randn(N, N)),
    "base": lambda module: module.parametrizations.weight[0].base.copy_(torch.eye(N).flip(0)),
    "load_state_dict": partial(loaded, False),
    "load_state_dict(assign=True)": partial(loaded, True),
    "reset": lambda module: rnnkern.parametrizations.reset_parameters(module, "weight"),
    "assignment": lambda module: setattr(module, "weight", torch.linalg.qr(torch.randn(N, N))[0]),
    "the weight itself": lambda module: module.weight.mul_(2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("graph", [True, False], ids=["grad", "no_grad"])
def test_a_change_is_seen(linear, change, graph):
    with torch.set_grad_enabled(graph):
        before = linear.weight.detach().clone()
    with torch.no_grad():
        change(linear)
    with torch.set_grad_enabled(graph):
        torch.testing.assert_close(linear.weight, plain("exp", linear))
        assert linear.weight.requires_grad == graph
    if change is not CHANGES["the weight itself"]:
        assert not torch.equal(linear.weight, before)


def test_frozen_and_thawed(linear):
    assert linear.weight.requires_grad
    originals(linear)[0].requires_grad_(False)
    assert not linear.weight.requires_grad
    originals(linear)[0].requires_grad_(True)
    assert linear.weight.requires_grad


def test_a_compiled_step_is_seen(linear):
    optimiser = torch.optim.SGD([originals(linear)[0]], 0.1)
    step = torch.compile(optimiser.step, backend="eager")
    for _ in range(2):
        before = linear.weight.detach().clone()
        linear(X).sum().backward()
        step()
        assert not torch.equal(linear.weight, before)
        torch.testing.assert_close(linear.weight, plain("exp", linear))


def test_backward_after_a_step_is_refused(linear):
    optimiser = torch.optim.SGD([originals(linear)[0]], 0.1)
    loss = linear(X).sum()
    loss.backward(retain_graph=True)
    optimiser.step()
    with pytest.raises(RuntimeError, match="since been modified by an in-place operation or an optimizer"):
        (loss + linear.weight.sum()).backward()


def test_threads_share_a_module(linear):
    """Some threads read the weight while others invalidate it."""
    wanted, failed = plain("exp", linear).detach(), []

    def ask():
        for _ in range(300):
            with torch.no_grad():
                try:
                    torch.testing.assert_close(linear.weight, wanted)
                except Exception as error:
                    failed.append(error)
                linear.parametrizations.weight[0]._held.clear()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
