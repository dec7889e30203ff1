"""The reference, to which all kernels are compared, against scalar equations over all cells."""

import itertools
import math

import pytest
import torch

from python_tests.samples import outputs_and_gradients, recurrence_sample
from rnnkern.reference import CELLS, recurrence
from rnnkern.reference._recurrence import product_of

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
DENSE = sorted(set(CELLS) - {"lstm_projected"})
"""Cells whose R may have heads."""


TORCH_NN = {"tanh", "relu", "lstm", "gru", "lstm_projected"}
"""Cells that python_tests/nn/test_parity.py compares with those of torch.nn."""


# ---- against the equations of a unit, in Python's numbers; r(k, x) is what R and the bias make of x for gate k


def s(x):
    return 1 / (1 + math.exp(-x))


def modrelu(z, bias):
    return z / abs(z) * max(abs(z) + bias, 0)


def gru_reset_before(u, r, h, _):
    reset, update = (s(u[k] + r(k, h)) for k in range(2))
    return (1 - update) * math.tanh(u[2] + r(2, reset * h)) + update * h


def goru(u, r, h, bias):
    reset, update = (s(u[k] + r(k, h)) for k in range(2))
    return (1 - update) * modrelu(u[2] + reset * r(2, h), bias) + update * h


BY_HAND = {
    "complex_modrelu": lambda u, r, h, bias: modrelu(complex(u[0] + r(0, h), u[1] + r(1, h)), bias).real,
    "goru": goru,
    "identity": lambda u, r, h, _: u[0] + r(0, h),
    "hardtanh": lambda u, r, h, _: min(max(u[0] + r(0, h), -1.0), 1.0),
    "modrelu": lambda u, r, h, bias: modrelu(u[0] + r(0, h), bias),
    "euler": lambda u, r, h, dt: h + dt * math.tanh(u[0] + r(0, h)),
    "gru_reset_before": gru_reset_before,
}


def test_every_cell_has_a_witness_of_its_own():
    assert {*TORCH_NN, *BY_HAND} == set(CELLS)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", BY_HAND)
def test_equations_by_hand(cell, bias):
    """Each unit is a head."""
    sample = recurrence_sample(cell, 4, 2, 3, heads=3, bias=bias)
    _, u, R, (h0,) = sample.args
    h, _ = recurrence(*sample.args, **sample.kwargs)
    biases = sample.kwargs["bias"].unflatten(0, (-1, 3)) if bias else torch.zeros(CELLS[cell].gates, 3)
    (params,) = sample.kwargs["params"] or (torch.zeros(3),)
    for sequence, unit in itertools.product(range(2), range(3)):
        r = lambda k, x, unit=unit: R[unit, k, 0].item() * x + biases[k, unit].item()  # noqa: E731
        state = h0[sequence, unit].item()
        for t in range(4):
            state = BY_HAND[cell](u[t, sequence].view(-1, 3)[:, unit].tolist(), r, state, params[unit].item())
            assert h[t, sequence, unit].item() == pytest.approx(state, rel=1e-12, abs=1e-14)


# ---- heads


def block_diagonal(R, gates):
    """Converts (K, G*D, D) to (G*H, H); row g*D+d of head k becomes row g*H+k*D+d."""
    heads, rows, d = R.shape
    hidden = heads * d
    dense = R.new_zeros(gates * hidden, hidden)
    for k in range(heads):
        for row in range(rows):
            dense[row // d * hidden + k * d + row % d, k * d : (k + 1) * d] = R[k, row]
    return dense


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
@pytest.mark.parametrize("cell", DENSE)
def test_heads_are_a_block_diagonal_matrix(cell, heads):
    sample = recurrence_sample(cell, 4, 3, 6, heads=heads, packed=True, reset=True, grad_scale=2, requires_grad=True)
    name, u, R, state = sample.args
    if heads == 1:
        R = R.detach()[None].requires_grad_()
    dense = block_diagonal(R.detach(), CELLS[cell].gates).requires_grad_()
    results, wanted = (outputs_and_gradients(recurrence, sample._replace(args=(name, u, r, state))) for r in (R, dense))
    outside = block_diagonal(torch.ones_like(R), CELLS[cell].gates) == 0
    wanted["grad of R"] = wanted["grad of R"].masked_fill(outside, 0)
    results["grad of R"] = block_diagonal(results["grad of R"], CELLS[cell].gates)
    torch.testing.assert_close(results, wanted, **CLOSE)


# ---- reset


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_reset_starts_from_zeros(cell, reverse):
    """The steps after a reset, in processing order, equal a separate sequence, and no gradient crosses the reset."""
    sample = recurrence_sample(cell, 5, 2, 4, reverse=reverse, requires_grad=True)
    name, u, R, state = sample.args
    reset = torch.zeros(5, 2, dtype=torch.bool)
    reset[2, 1] = True
    h, final = recurrence(name, u, R, state, reset=reset, **sample.kwargs)
    alone, alone_final = recurrence(name, u[:, :1], R, tuple(x[:1] for x in state), **sample.kwargs)
    after, before = (slice(3), slice(3, None)) if reverse else (slice(2, None), slice(2))
    zeros = tuple(torch.zeros_like(x[1:]) for x in state)
    early, _ = recurrence(name, u[before, 1:], R, tuple(x[1:] for x in state), **sample.kwargs)
    late, late_final = recurrence(name, u[after, 1:], R, zeros, **sample.kwargs)
    wanted = torch.cat([alone, torch.cat([late, early] if reverse else [early, late])], 1)
    torch.testing.assert_close(h, wanted, **CLOSE)
    torch.testing.assert_close(final, tuple(map(torch.cat, zip(alone_final, late_final, strict=True))), **CLOSE)
    du, *dstate = torch.autograd.grad(sum(x[1].sum() for x in final), (u, *state))
    assert not du[before].any()
    assert not any(d.any() for d in dstate)


def test_reset_of_packed_sequences_counts_steps_and_sequences():
    _, (name, u, R, state), kwargs = recurrence_sample("lstm", 5, 3, 4, packed=True, reset=True)
    kwargs["reset"][0, 0] = True
    h, _ = recurrence(name, u, R, state, **kwargs)
    sizes, reset = kwargs.pop("batch_sizes"), kwargs.pop("reset")
    alive = torch.arange(3) < sizes[:, None]
    padded = torch.zeros(5, 3, 16, dtype=u.dtype)
    padded[alive] = u
    wanted, _ = recurrence(name, padded, R, state, reset=reset, **kwargs)
    assert (reset & alive).any()
    torch.testing.assert_close(h, wanted[alive], **CLOSE)


# ---- grad_scale


@pytest.mark.parametrize("sizes", [(5,), (5, 2)], ids=["(T,)", "(T, B)"])
@pytest.mark.parametrize("cell", CELLS)
def test_grad_scale_multiplies_the_gradient_of_h_through_the_product(cell, sizes):
    """As h - (1 - scale) h_detached, where other gradients of h and c do not change. No gradient flows to it."""
    sample = recurrence_sample(cell, 5, 2, 3, requires_grad=True)
    scale = (2 * torch.rand(sizes, dtype=torch.float64)).requires_grad_()
    scale.detach()[::2] = torch.tensor([0.0, 1.0, 0.0]).view(3, *[1] * (scale.dim() - 1))

    def by_hand(name, u, R, state, bias, params, **_):
        product, outputs = product_of(R, bias, CELLS[name].recurrent, None, None), []
        for t in range(5):
            factor = scale.detach()[t].view(-1, 1)
            scaled = lambda h, *rows, x=factor, **gain: product(h.detach() + x * (h - h.detach()), *rows, **gain)  # noqa: E731
            state = CELLS[name].step(u[t], scaled, state, *params)
            outputs.append(state[0])
        return torch.stack(outputs), state

    wanted, plain = outputs_and_gradients(by_hand, sample), outputs_and_gradients(recurrence, sample)
    sample.kwargs["grad_scale"] = scale
    found = outputs_and_gradients(recurrence, sample)
    torch.testing.assert_close(found, wanted, **CLOSE)
    assert torch.equal(found["h"], plain["h"])
    assert not torch.allclose(plain["grad of u"], found["grad of u"])
    assert torch.autograd.grad(recurrence(*sample.args, **sample.kwargs)[0].sum(), scale, allow_unused=True) == (None,)


def test_grad_scale_leaves_infinite_values_alone():
    u, R, h0 = torch.zeros(1, 1, 1), torch.ones(1, 1), torch.full((1, 1), torch.inf)
    assert torch.equal(recurrence("relu", u, R, (h0,), grad_scale=torch.ones(1))[0], h0[None])


# ---- empty sizes


@pytest.mark.parametrize("cell", CELLS)
def test_no_steps_and_no_sequences(cell):
    for steps, batch in ((0, 3), (2, 0), (0, 0)):
        sample = recurrence_sample(cell, steps, batch, 4, requires_grad=True)
        results = outputs_and_gradients(recurrence, sample)
        state = sample.args[3]
        assert results["h"].shape == (steps, batch, state[0].shape[1])
        assert not results["grad of R"].any()
        for k, initial in enumerate(state):
            final = results[f"final state[{k}]"]
            assert final.shape == initial.shape
            assert final is not initial
            assert steps > 0 or torch.equal(final, initial)
