"""Orthogonal weights with dynamic bases: when the base moves, with which optimizers, and the drift from
orthogonality."""

import copy

import pytest
import torch
from torch.nn.utils import parametrize

import rnnkern
from python_tests.parametrizations.square import F64, distance, made, moved, parts
from rnnkern.parametrizations import Orthogonal, orthogonal_matrix
from rnnkern.parametrizations._orthogonal import BASES, MAPS, PROJECT


@pytest.mark.parametrize("orthogonal_map", MAPS)
@pytest.mark.parametrize("rebase_every", [1, 3])
def test_a_dynamic_base_moves_after_every_k_th_step(orthogonal_map, rebase_every):
    module = made(orthogonal_map=orthogonal_map, base="dynamic", rebase_every=rebase_every)
    parametrization, A = parts(module)
    optimiser = torch.optim.Adam(module.parameters(), 0.05)
    base = parametrization.base.clone()
    for step in range(1, 8):
        module.weight.square().sin().sum().backward()
        with torch.no_grad():
            A.sub_(0.01)  # A also changes without an optimizer step
        optimiser.step()
        assert parametrization.steps == step
        assert (not A.any()) == (step % rebase_every == 0)
        assert torch.equal(parametrization.base, base) == (step % rebase_every != 0)
        base = parametrization.base.clone()
    assert distance(module.weight) < 1e-13


def test_the_weight_stays_when_the_base_moves():
    module = moved(made(dtype=torch.float32))
    before = module.weight.detach().clone()
    parts(module)[0].rebase()
    assert not parts(module)[1].any()
    assert torch.equal(module.weight, before)


def test_only_steps_of_an_optimiser_that_has_the_parameter_count():
    module, other = made(base="dynamic", rebase_every=100), torch.nn.Linear(2, 2)
    optimisers = [torch.optim.SGD(m.parameters(), 0.1) for m in (module, other)]
    for optimiser in [*optimisers, optimisers[1]]:
        (module.weight.sum() + other.weight.sum()).backward()
        optimiser.step()
    assert parts(module)[0].steps == 1


def test_one_step_of_lbfgs_is_one():
    """Within a step, the line search returns to earlier points."""
    module = made(base="dynamic")
    target = orthogonal_matrix(torch.empty(6, 6, dtype=F64), "haar")
    with torch.no_grad():
        module.weight = target @ rnnkern.reference.skew_exp(0.3 * torch.ones(6, 6, dtype=F64))
    optimiser = torch.optim.LBFGS(module.parameters(), line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = (module.weight - target).square().sum()
        loss.backward()
        return loss

    for _ in range(5):
        optimiser.step(closure)
    assert parts(module)[0].steps == 5
    assert closure() < 1e-8


OPTIMISERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Rprop", "Adadelta", "ASGD", "Adamax", "RAdam")


@pytest.mark.parametrize("name", OPTIMISERS)
def test_any_optimiser_descends_on_a_moving_base(name):
    module = made(base="dynamic", rebase_every=4, init="identity")
    target = rnnkern.reference.skew_exp(0.2 * torch.ones(6, 6, dtype=F64))
    options = {"momentum": 0.9} if name == "SGD" else {}
    lr = {"Adadelta": 1.0, "Adagrad": 0.1, "RAdam": 0.05}.get(name, 0.01)
    optimiser = getattr(torch.optim, name)(module.parameters(), lr, **options)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = (module.weight - target).square().sum()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < (0.9 if name == "Adadelta" else 0.1) * losses[0]
    assert parts(module)[0].steps == 60


def test_a_parametrization_that_was_removed_hears_no_more():
    module = made(base="dynamic")
    parametrization = parts(module)[0]
    parametrize.remove_parametrizations(module, "weight")
    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    module.weight.sum().backward()
    optimiser.step()
    assert module.weight.any()
    assert parametrization.steps == 0


def test_a_sharded_parameter_is_refused():
    module = made(base="dynamic")
    parametrization, A = parts(module)
    A.data = A.data[:3]
    with pytest.raises(RuntimeError, match=r"needs a complete A \(6, 6\), got Parameter \(3, 6\); use base="):
        parametrization.stepped({id(A)})


def test_copies_of_a_dynamic_one_move_by_themselves():
    module = made(base="dynamic")
    other = copy.deepcopy(module)
    before = module.weight.detach().clone()
    optimiser = torch.optim.SGD(other.parameters(), 0.1)
    other.weight.square().sin().sum().backward()
    optimiser.step()
    assert (parts(other)[0].steps, parts(module)[0].steps) == (1, 0)
    assert not parts(other)[1].any()
    assert torch.equal(module.weight, before)


# ---- drift


@pytest.mark.parametrize("orthogonal_map", ["exp", "scaled_cayley"])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.sampled
def test_10_000_updates_stay_orthogonal(base, orthogonal_map):
    """Steps like those of RMSprop: every entry changes by about the learning rate."""
    size, lr = 24, 1e-3
    parametrization = Orthogonal(torch.empty(size, size), orthogonal_map, "haar", base)
    A = torch.nn.Parameter(parametrization.draw())
    parametrization._of = lambda: type("Of", (), {"is_tensor": True, "original": A, "_parameters": {"original": A}})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(10_000):
            A.sub_(lr * torch.randn(size, size, generator=generator))
            if base == "dynamic":
                parametrization.stepped({id(A)})
        assert parametrization.steps == (10_000 if base == "dynamic" else 0)
        assert distance(parametrization(A)) < 2e-6


@pytest.mark.parametrize("orthogonal_map", ["exp", "scaled_cayley"])
def test_small_moves_lose_no_digits(orthogonal_map):
    """1 - 1e-8 is 1 in float32, so 1,000 such moves of a rounded V would lose 1e-5. There is no projection in this
    test."""
    module = made(16, torch.float32, orthogonal_map=orthogonal_map, base="dynamic")
    parametrization, A = parts(module)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(1000):
            A.copy_(3e-5 * torch.randn(16, 16, generator=generator))
            parametrization.rebase()
    assert distance(module.weight) < 4e-6


def test_rounding_is_removed_now_and_then():
    module = made(base="dynamic", dtype=torch.float32)
    parametrization, A = parts(module)
    with torch.no_grad():
        parametrization.base.mul_(1 + 1e-4)
    parametrization.steps = PROJECT - 2
    parametrization.stepped({id(A)})
    assert distance(module.weight) > 1e-4
    parametrization.stepped({id(A)})
    assert distance(module.weight) < 1e-6
