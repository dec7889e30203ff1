"""torch.func, forward mode, torch.compile, export and autocast, over the table of parametrizations."""

import copy

import pytest
import torch
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

import rnnkern
from python_tests.samples.parametrizations import ROWS, moved, originals, plain, registered
from python_tests.tiers import quick_where

rows = pytest.mark.parametrize("name", ROWS)
COMPILED = quick_where(lambda name: name in ("exp", "householder"), ROWS)
BREAKING = ("unitary-fourier", "unitary-givens", "unitary-butterfly-heads")
"""Those that torch.compile does not see as one graph, because of ``dtype.to_complex``."""


def loss_of(W):
    return W.abs().square().sin().sum()


@rows
def test_functional_calls_and_transforms(name):
    module = moved(registered(name))
    own = module.weight
    others = {key: (p + 0.1 * torch.randn_like(p)).detach() for key, p in module.named_parameters()}
    torch.testing.assert_close(functional_call(module, others, ()), plain(name, module, *others.values()))
    assert module.weight is own
    found = grad(lambda parameters: loss_of(functional_call(module, parameters, ())))(others)
    leaves = [p.requires_grad_() for p in others.values()]
    wanted = torch.autograd.grad(loss_of(plain(name, module, *leaves)), leaves)
    torch.testing.assert_close(tuple(found.values()), wanted)
    # A transform with respect to another tensor, which uses the module's weight.
    x = torch.randn(())
    torch.testing.assert_close(grad(lambda x: (x * module()).abs().sum())(x), (x.sign() * own.abs().sum()).to(x))


@rows
def test_members_of_an_ensemble(name):
    models = [registered(name)]
    models.append(moved(copy.deepcopy(models[0])))
    members = vmap(lambda p, b: functional_call(models[0], (p, b), ()))(*stack_module_state(models))
    torch.testing.assert_close(members, torch.stack([model.weight for model in models]))


@rows
def test_forward_mode_loses_nothing(name):
    module = moved(registered(name))
    names = [key for key, _ in module.named_parameters()]
    leaves = tuple(p.detach() for p in originals(module))
    directions = tuple(map(torch.randn_like, leaves))

    def weight(*leaves):
        return functional_call(module, dict(zip(names, leaves, strict=True)), ())

    with rnnkern.use("reference"):
        _, found = jvp(weight, leaves, directions)
    _, wanted = jvp(lambda *leaves: plain(name, module, *leaves), leaves, directions)
    torch.testing.assert_close(found, wanted)
    if name == "exp":
        with pytest.raises(NotImplementedError, match="skew_exp: forward-mode AD is not supported"):
            jvp(weight, leaves, directions)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.drawn
def test_compiled_and_exported(name):
    module = moved(registered(name))
    leaves = originals(module)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=name not in BREAKING)
    optimiser = torch.optim.SGD(rnnkern.optim.param_groups(module, 0.1))
    for _ in range(2):
        torch.testing.assert_close(compiled(), module.weight)
        found, wanted = (torch.autograd.grad(loss_of(W), leaves) for W in (compiled(), module.weight))
        torch.testing.assert_close(found, wanted)
        for p, g in zip(leaves, wanted, strict=True):
            p.grad = g
        optimiser.step()
    torch.testing.assert_close(torch.export.export(module, ()).module()(), module.weight)


@rows
def test_autocast_does_not_reach_into_the_weight(name):
    module = moved(registered(name, torch.float32))
    leaves, dtype = originals(module), module.weight.dtype
    wanted = torch.autograd.grad(loss_of(module.weight), leaves)
    for graph in (False, True):
        again = copy.deepcopy(module)
        with torch.autocast("cpu", torch.bfloat16):
            weight = again.weight
            found = torch.autograd.grad(loss_of(weight), originals(again), create_graph=graph)
        assert weight.dtype == dtype
        torch.testing.assert_close([weight, *found], [module.weight, *wanted])
