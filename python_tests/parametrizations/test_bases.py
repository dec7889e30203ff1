"""Moving bases, over the parametrizations that have one: when a base moves, with which optimizers, and its rounding."""

import copy
import functools

import pytest
import torch
from torch.nn.utils import parametrize

import rnnkern
from python_tests.samples.parametrizations import ROWS, from_unitary, moved, originals, plain, registered
from rnnkern.optim import param_groups
from rnnkern.parametrizations._orthogonal import PROJECT

F64 = torch.float64
DYNAMIC = [name for name, row in ROWS.items() if row.options.get("base") == "dynamic"]
moving = pytest.mark.parametrize("name", DYNAMIC)


def parametrization(module):
    return module.parametrizations.weight[0]


def step(module, optimiser):
    optimiser.zero_grad()
    module.weight.abs().square().sin().sum().backward()
    optimiser.step()


@pytest.mark.parametrize("rebase_every", [1, 3])
@moving
def test_a_dynamic_base_moves_after_every_k_th_step(name, rebase_every):
    module = registered(name, rebase_every=rebase_every)
    found, A = parametrization(module), originals(module)[0]
    optimiser = torch.optim.Adam(param_groups(module, 0.05, 0.05))
    base = found.base.clone()
    for k in range(1, 8):
        with torch.no_grad():
            A.sub_(0.01)  # A also changes without an optimizer step
        step(module, optimiser)
        assert found.steps == k
        assert (not A.any()) == (k % rebase_every == 0)
        assert torch.equal(found.base, base) == (k % rebase_every != 0)
        base = found.base.clone()


@moving
def test_the_weight_stays_when_the_base_moves(name):
    module = moved(registered(name))
    before = module.weight.detach().clone()
    parametrization(module).rebase()
    assert not originals(module)[0].any()
    torch.testing.assert_close(module.weight, before, rtol=1e-13, atol=1e-13)


@moving
def test_only_steps_of_an_optimiser_that_has_the_parameter_count(name):
    module, other = registered(name), torch.nn.Linear(2, 2)
    copied = copy.deepcopy(module)
    optimisers = [torch.optim.SGD(originals(copied)[:1], 0.1), torch.optim.SGD(other.parameters(), 0.1)]
    for optimiser in [*optimisers, optimisers[1]]:
        (copied.weight.abs().square().sum() + other.weight.sum()).backward()
        optimiser.step()
    assert (parametrization(copied).steps, parametrization(module).steps) == (1, 0)


def test_one_step_of_lbfgs_is_one():
    """Within a step, the line search returns to earlier points."""
    module = registered("exp-dynamic", rebase_every=1)
    target = registered("exp").weight.detach()
    module.weight = target @ rnnkern.reference.skew_exp(0.3 * torch.ones(6, 6, dtype=F64))
    optimiser = torch.optim.LBFGS(module.parameters(), line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = (module.weight - target).square().sum()
        loss.backward()
        return loss

    for _ in range(5):
        optimiser.step(closure)
    assert parametrization(module).steps == 5
    assert closure() < 1e-8


OPTIMISERS = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam")
}
OPTIMISERS |= {
    f"{name} {option}": functools.partial(getattr(torch.optim, name), **{option: True})
    for name in ("SGD", "Adam", "AdamW")
    for option in ("foreach", "fused")
}
RATES = {"Adadelta": 1.0, "Adagrad": 0.1, "Adafactor": 10.0, "LBFGS": 0.1, "RAdam": 0.05, "Muon": 0.05}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_any_optimiser_descends_on_a_moving_base_and_its_steps_are_seen(optimiser):
    module = registered("exp-dynamic", torch.float32, rebase_every=4, init="identity")
    target = rnnkern.reference.skew_exp(0.2 * torch.ones(6, 6))
    steps = OPTIMISERS[optimiser](module.parameters(), lr=RATES.get(optimiser, 0.01))
    losses = []

    def closure():
        steps.zero_grad()
        loss = (module.weight - target).square().sum()
        loss.backward()
        return loss

    for k in range(60):
        before = module.weight.detach().clone()
        losses.append(steps.step(closure).item())
        if k < 3:
            torch.testing.assert_close(module.weight, plain("exp-dynamic", module))
            assert not torch.equal(module.weight, before)
    assert losses[-1] < (0.9 if optimiser in ("Adadelta", "Adafactor") else 0.1) * losses[0]
    assert parametrization(module).steps == 60


def test_at_zero_nothing_is_computed(monkeypatch):
    module = registered("exp-dynamic", rebase_every=1)
    optimiser, counted = torch.optim.SGD(module.parameters(), 0.1), []
    exp = rnnkern.ops.skew_exp
    monkeypatch.setattr(rnnkern.ops, "skew_exp", lambda *args, **kwargs: counted.append(1) or exp(*args, **kwargs))
    for k in range(3):
        module.weight.square().sum().backward()
        assert len(counted) == k
        optimiser.step()  # computes B exp(A) once
    assert len(counted) == 3


def test_a_parametrization_that_was_removed_hears_no_more():
    module = registered("exp-dynamic")
    found = parametrization(module)
    parametrize.remove_parametrizations(module, "weight")
    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    step(module, optimiser)
    assert module.weight.any()
    assert found.steps == 0


def test_a_sharded_parameter_is_refused():
    module = registered("exp-dynamic", rebase_every=1)
    (A,) = originals(module)
    A.data = A.data[:3]
    with pytest.raises(RuntimeError, match=r"needs a complete A \(6, 6\), got Parameter \(3, 6\); use base="):
        parametrization(module).stepped({id(A)})


# ---- rounding


@pytest.mark.parametrize("name", ["exp-dynamic", "scaled_cayley-dynamic"])
def test_small_moves_lose_no_digits(name):
    """1 - 1e-8 is 1 in float32, so 1,000 such moves of a rounded V would lose 1e-5. There is no projection in this
    test."""
    module = registered(name, torch.float32)
    (A,) = originals(module)
    with torch.no_grad():
        for _ in range(1000):
            A.copy_(3e-5 * torch.randn(A.shape))
            parametrization(module).rebase()
    assert from_unitary(module.weight) < 4e-6


def test_rounding_is_removed_now_and_then():
    module = registered("exp-dynamic", torch.float32, rebase_every=1)
    (A,), found = originals(module), parametrization(module)
    with torch.no_grad():
        found.base.mul_(1 + 1e-4)
    found.steps = PROJECT - 2
    found.stepped({id(A)})
    assert from_unitary(module.weight) > 1e-4
    found.stepped({id(A)})
    assert from_unitary(module.weight) < 1e-6
