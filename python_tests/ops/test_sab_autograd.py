"""Derivatives of sab_recurrence of all orders: gradcheck, opcheck, transforms and torch.compile."""

import random

import pytest
import torch
from torch.library import opcheck

from python_tests.ops.sab_calls import make
from python_tests.seeds import FIRST
from rnnkern import reference
from rnnkern.ops import sab_recurrence

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
"""Tests of opcheck; the other one takes long to compile the reference's second derivative."""

_operators = torch.ops.rnnkern


@pytest.mark.parametrize(("width", "packed"), [(None, False), (2, False), (None, True)])
def test_gradients_of_every_order(width, packed):
    random.seed(FIRST + 3)
    call = make(4, 2, 2, width, packed=packed, resets=True, truncation=100, top_k=2).to(torch.float64)

    def function(*leaves):
        out, state = call(sab_recurrence, dict(zip(call.leaves, leaves, strict=True)))
        return out, state.h, state.c, state.memory

    leaves = tuple(call.leaves.values())
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


def test_second_derivatives_of_a_cut_path_are_the_reference_s():
    call = make(7, 2, 3, truncation=2, top_k=2).to(torch.float64)
    found = []
    for function in (sab_recurrence, reference.sab_recurrence):
        leaves = list(call.leaves.values())
        first = torch.autograd.grad(call(function)[0].sin().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(x.square().sum() for x in first), leaves))
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("kind", ["plain", "packed", "empty"])
@pytest.mark.sampled
def test_operators_pass_torchs_own_checks(kind, width):
    random.seed(FIRST + 1)
    call = make(4, 0 if kind == "empty" else 2, 3, width, packed=kind == "packed", resets=True, attend_every=2)
    x, options = call.leaves, call.options
    attention = [x["W"], x["w"]] if width else [x["w"]]
    *state, steps = reference.begin_sab(x["h0"], x["c0"])
    state[2] = state[2].clone()
    fixed = (options["batch_sizes"], options["reset"], steps, 3, 2, 5)
    for training in (False, True):
        opcheck(_operators.sab_recurrence.default, (x["u"], x["R"], x["bias"], attention, state, *fixed, training))
    out, h, c, memory, _, *saved = _operators.sab_recurrence(x["u"], x["R"], x["bias"], attention, state, *fixed, True)
    grads = [torch.randn_like(y).requires_grad_() for y in (out, h, c, memory)]
    leaf = x["u"].clone().requires_grad_()
    for grad_out, grad_state in ((grads[0], grads[1:]), (None, grads[1:]), (grads[0], [])):
        opcheck(
            _operators.sab_recurrence_backward.default,
            (grad_out, grad_state, leaf, x["R"], x["bias"], attention, state, *fixed, out, saved), test_utils=CHECKS,
        )  # fmt: skip


def test_transforms_and_the_compiler():
    call = make(6, 2, 3, width=4, top_k=2).to(torch.float64)
    u = call.leaves["u"].detach()

    def loss(u):
        out, state = call(sab_recurrence, {"u": u})
        return out.sin().sum() + state.memory.sum()

    leaf = u.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(u), wanted)
    members = torch.stack([u, 2 * u])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(members)[0], wanted)
    with pytest.raises(NotImplementedError, match="forward-mode AD is not supported"):
        torch.func.jvp(loss, (u,), (u,))
    compiled = torch.compile(loss, fullgraph=True)
    again = u.clone().requires_grad_()
    torch.testing.assert_close(compiled(again), loss(again))
    compiled(again).backward()
    torch.testing.assert_close(again.grad, wanted)
