"""How long a cached weight is kept, and what is released with it."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch.func import functional_call

from python_tests.parametrizations.linear import N, X, made, move, plain, skew_of
from rnnkern.parametrizations import orthogonal


def saved(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda module: pickle.loads(pickle.dumps(module)), "save": saved}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_hold_nothing_and_go_their_own_way(linear, copied):
    linear(X).sum().backward()
    other = copied(linear)
    assert torch.equal(other.weight, linear.weight)
    assert other.parametrizations.weight[0]._of() is other.parametrizations.weight
    with torch.no_grad():
        skew_of(other).mul_(2)
    assert not torch.equal(other.weight, linear.weight)
    other(X).sum().backward()
    torch.testing.assert_close(other.weight, plain(other))
    other.weight = torch.eye(N)
    torch.testing.assert_close(other.weight, torch.eye(N))


def test_second_derivatives_outlive_the_module():
    module = made()
    A, weight, wanted = skew_of(module), module.weight, plain(module)
    del module
    gc.collect()
    found, wanted = (torch.autograd.grad(x.sin().sum(), A, create_graph=True)[0] for x in (weight, wanted))
    (found, wanted) = (torch.autograd.grad(x.square().sum(), A)[0] for x in (found, wanted))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_is_computed_from_other_tensors_is_not_held(linear):
    """It would keep their graph in memory and replace the value cached for the module's own parameter."""
    own, leaf = linear.weight, skew_of(linear).detach().requires_grad_()
    A = 2 * leaf
    functional_call(linear, {"parametrizations.weight.original": A}, (X,)).sum().backward()
    wanted = torch.autograd.grad((X @ plain(linear, 2 * leaf).T).sum(), leaf)[0]
    torch.testing.assert_close(leaf.grad, wanted, rtol=1e-4, atol=1e-5)
    gone = weakref.ref(A)
    del A
    assert gone() is None
    assert linear.weight is own


def test_leaves_of_a_functional_call_are_not_held(linear):
    own, A = linear.weight, skew_of(linear).detach().clone().requires_grad_()
    functional_call(linear, {"parametrizations.weight.original": A}, (X,)).sum().backward()
    wanted = torch.autograd.grad((X @ plain(linear, A).T).sum(), A)[0]
    torch.testing.assert_close(A.grad, wanted, rtol=1e-4, atol=1e-5)
    gone = weakref.ref(A)
    del A
    assert gone() is None
    assert linear.weight is own


def test_nothing_is_kept_alive():
    """The garbage collector can traverse autograd nodes that nothing else references."""
    module = orthogonal(torch.nn.Linear(N, N), "weight", base="dynamic")
    move(module)
    module(X).sum().backward()
    gone = weakref.ref(skew_of(module))
    del module
    gc.collect()
    assert gone() is None


def test_two_values_are_never_in_memory(linear, monkeypatch):
    seen = []
    compute = linear.parametrizations.weight[0].compute
    weight = weakref.ref(linear.weight)

    def spy(A):
        seen.append(weight())
        return compute(A)

    monkeypatch.setattr(linear.parametrizations.weight[0], "compute", spy)
    move(linear)
    _ = linear.weight
    assert seen == [None]
