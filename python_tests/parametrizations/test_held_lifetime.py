"""How long a cached weight is kept, and what is released with it."""

import gc
import weakref

import pytest
import torch
from torch.func import functional_call

from python_tests.samples.parametrizations import moved, originals, plain, registered


def test_second_derivatives_outlive_the_module():
    module = moved(registered("exp"))
    (A,), weight, wanted = originals(module), module.weight, plain("exp", module)
    del module
    gc.collect()
    found, wanted = (torch.autograd.grad(x.sin().sum(), A, create_graph=True)[0] for x in (weight, wanted))
    (found, wanted) = (torch.autograd.grad(x.square().sum(), A)[0] for x in (found, wanted))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("factor", [1, 2], ids=["a leaf", "computed from a leaf"])
def test_what_is_computed_from_other_tensors_is_not_held(linear, factor):
    """It would keep their graph in memory and replace the value cached for the module's own parameter."""
    own, leaf = linear.weight, originals(linear)[0].detach().clone().requires_grad_()
    A, x = leaf if factor == 1 else factor * leaf, torch.randn(3, 6)
    functional_call(linear, {"parametrizations.weight.original": A}, (x,)).sum().backward()
    wanted = torch.autograd.grad((x @ plain("exp", linear, factor * leaf).T).sum(), leaf)[0]
    torch.testing.assert_close(leaf.grad, wanted, rtol=1e-4, atol=1e-5)
    gone = weakref.ref(A)
    del A, leaf
    assert gone() is None
    assert linear.weight is own


def test_nothing_is_kept_alive():
    """The garbage collector can traverse autograd nodes that nothing else references."""
    module = moved(registered("exp-dynamic"))
    module.weight.sum().backward()
    gone = weakref.ref(originals(module)[0])
    del module
    gc.collect()
    assert gone() is None


def test_two_values_are_never_in_memory(linear, monkeypatch):
    seen, found = [], linear.parametrizations.weight[0]
    compute, weight = found.compute, weakref.ref(linear.weight)

    def spy(A):
        seen.append(weight())
        return compute(A)

    monkeypatch.setattr(found, "compute", spy)
    moved(linear)
    _ = linear.weight
    assert seen == [None]
