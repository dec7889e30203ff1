"""Jacobians of a step of every cell, compared with automatic differentiation."""

import pytest
import torch

import rnnkern
from python_tests.samples import NORMALISED, recurrence_sample, takes
from rnnkern.analysis import jacobian
from rnnkern.reference import CELLS
from rnnkern.reference._recurrence import cell_of, product_of

F64 = torch.float64
CASES = [(cell, heads) for cell in (*CELLS, *NORMALISED) for heads in (1, 2) if heads == 1 or takes(cell, ["heads"])]


def arguments(cell, batch=3, hidden=4, heads=1, seed=0):
    """The arguments of :func:`jacobian`."""
    torch.manual_seed(seed)
    sample = recurrence_sample(cell, 1, batch, hidden, heads=heads)
    cell, u, R, state = sample.args
    return (cell, u[0], R, state), {name: sample.kwargs[name] for name in ("bias", "params")}


def by_autograd(cell, u, R, state, bias, params):
    """vmap(jacrev) of the reference's formula."""
    facts = cell_of(cell)

    def step(u, *state):
        state = tuple(s[None] for s in state)
        return torch.cat(facts.step(u[None], product_of(R, bias, facts.recurrent, None, None), state, *params), -1)[0]

    def of_one(u, *state):
        return torch.cat(torch.func.jacrev(step, argnums=tuple(range(1, 1 + len(state))))(u, *state), -1)

    return torch.vmap(of_one)(u, *state)


@pytest.mark.parametrize(("cell", "heads"), CASES)
def test_it_equals_automatic_differentiation(cell, heads):
    args, options = arguments(cell, heads=heads)
    found = jacobian(*args, **options)
    torch.testing.assert_close(found, by_autograd(*args, **options), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("cell", "u", "params"), [
    ("relu", [0.0, 1.0, -1.0], ()),
    ("hardtanh", [1.0, -1.0, 0.5], ()),
    ("modrelu", [0.0, 0.2, -0.5], ([0.1, -0.2, 0.5],)),
    ("modrelu", [0.0, 0.2, -0.5], ([-0.1, -0.1, -0.5],)),
])  # fmt: skip
def test_at_a_kink_it_is_the_derivative_of_the_backward_pass(cell, u, params):
    u, params = torch.tensor([u], dtype=F64), tuple(torch.tensor(p, dtype=F64) for p in params)
    R, h = 2 * torch.eye(3, dtype=F64), torch.zeros(1, 3, dtype=F64, requires_grad=True)
    y = rnnkern.ops.recurrence(cell, u[None], R, (h,), params=params)[0].sum()
    (wanted,) = torch.autograd.grad(y, h)
    assert torch.equal(jacobian(cell, u, R, (h.detach(),), params=params)[0].diagonal(), wanted[0])


def test_without_bias_sequences_or_columns():
    args, _ = arguments("lstm", batch=0, hidden=1)
    assert jacobian(*args).shape == (0, 2, 2)
    (cell, u, R, state), options = arguments(NORMALISED[1], batch=0)
    assert jacobian(cell, u, R, state, **options).shape == (0, 4, 4)


def test_the_closed_forms_can_be_differentiated():
    (cell, u, R, state), options = arguments("lstm", batch=2, hidden=3)
    state = [s.requires_grad_() for s in state]
    assert torch.autograd.gradcheck(lambda *state: jacobian(cell, u, R, state, **options), state)


def test_of_a_cell_that_a_user_wrote():
    @rnnkern.cell(gates="fn")
    def mgu(u, r, h):
        f = torch.sigmoid(u.f + r.f)
        return (1 - f) * h + f * torch.tanh(u.n + f * r.n)

    torch.manual_seed(0)
    u, R, h = torch.randn(2, 6, dtype=F64), torch.randn(6, 3, dtype=F64), torch.randn(2, 3, dtype=F64)
    wanted = torch.func.jacrev(lambda h: rnnkern.reference.recurrence(mgu.name, u[None], R, (h,))[1][0])(h)
    torch.testing.assert_close(jacobian(mgu, u, R, (h,)), torch.stack([wanted[b, :, b] for b in range(2)]))
