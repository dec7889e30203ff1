"""Values, first and second derivatives and what is promised of a weight, over the table of parametrizations."""

import inspect

import pytest
import torch

from python_tests.samples.parametrizations import ROWS, moved, originals, plain, registered
from rnnkern import parametrizations
from rnnkern.optim import param_groups

F64 = torch.float64
rows = pytest.mark.parametrize("name", ROWS)
constrained = pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.off])
DYNAMIC = [name for name, row in ROWS.items() if row.options.get("base") == "dynamic" and row.off]


def test_the_table_is_complete():
    functions = {name for name in parametrizations.__all__ if inspect.isfunction(getattr(parametrizations, name))}
    others = {"orthogonal_matrix", "unitary_matrix", "reset_parameters", "zero_order_hold"}
    assert {row.function for row in ROWS.values()} == functions - others


@pytest.mark.parametrize("scale", [0, 0.5], ids=["begun", "moved"])
@rows
def test_value_and_gradients_are_the_equation_s(name, scale):
    module = moved(registered(name), scale)
    leaves, wanted = originals(module), plain(name, module)
    assert module.weight.shape == ROWS[name].shape
    torch.testing.assert_close(module.weight, wanted, rtol=1e-12, atol=1e-13)
    G = torch.randn_like(wanted)
    found, wanted = (torch.autograd.grad((G * W).real.sum(), leaves) for W in (module.weight, wanted))
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("scale", [0, 0.5], ids=["begun", "moved"])
@rows
@pytest.mark.sampled
def test_second_derivatives_are_the_equation_s(name, scale):
    module = moved(registered(name), scale)
    leaves = originals(module)
    v, G = [torch.randn_like(p) for p in leaves], torch.randn_like(module.weight)

    def second(W):
        first = torch.autograd.grad((G * W).real.sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum((g * x).sum() for g, x in zip(first, v, strict=True)), leaves)

    torch.testing.assert_close(second(module.weight), second(plain(name, module)))
    torch.autograd.grad(module.weight.real.sum(), leaves)  # the first backward pass freed nothing


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), (F64, 1e-14)], ids=str)
@constrained
def test_no_parameter_leads_to_another_kind_of_weight(name, dtype, limit):
    module = registered(name, dtype)
    for scale in (0, 0.5, 10):
        assert ROWS[name].off(moved(module, scale).weight) < limit * max(1, scale), scale


@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.sampled
def test_10_000_updates_of_a_moving_base_do_not_drift(name):
    """Steps like those of RMSprop: every entry changes by about the learning rate."""
    module, generator = registered(name, torch.float32, rebase_every=1), torch.Generator().manual_seed(0)
    A, begun = originals(module)[0], module.weight.detach().clone()
    optimiser = torch.optim.SGD([A], 1e-3)
    for _ in range(10_000):
        A.grad = torch.randn(A.shape, generator=generator)
        optimiser.step()
    assert (module.weight - begun).abs().max() > 0.1
    assert ROWS[name].off(module.weight) < 2e-6


@rows
def test_an_optimiser_trains_the_weight(name):
    """After every step the weight, which is held until then, is the equation's and keeps its promise."""
    module = registered(name)
    optimiser = torch.optim.Adam(param_groups(module, 0.05, 0.05))
    for _ in range(7):
        before = module.weight
        assert module.weight is before
        optimiser.zero_grad()
        before.abs().square().sin().sum().backward()
        optimiser.step()
        torch.testing.assert_close(module.weight, plain(name, module))
        assert not torch.equal(module.weight, before)
        assert ROWS[name].off is None or ROWS[name].off(module.weight) < 1e-14


REACHING = ["householder", "givens", "unitary-givens", "unitary-exp"]


@pytest.mark.parametrize("name", REACHING)
def test_every_weight_is_reached(name):
    """Some initial values lead to other minima."""
    options = {"layers": None} if name == "givens" else {}
    target, reached = moved(registered(name, **options), 3.0).weight.detach(), []
    for _ in range(3):
        module = moved(registered(name, **options), 0.3)
        optimiser = torch.optim.LBFGS(module.parameters(), max_iter=200, line_search_fn="strong_wolfe")

        def closure(module=module, optimiser=optimiser):
            optimiser.zero_grad()
            loss = (module.weight - target).abs().square().sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        reached.append(closure().item())
    assert min(reached) < 1e-8
