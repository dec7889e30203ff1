"""What linear_scan and moment_filter alone promise: closed forms, the final state alone, and factors of other kinds."""

import pytest
import torch

from python_tests.samples import SCAN_OPTIONS, agree, filtered, scan_sample
from python_tests.samples.operators import COMPLEX, draw, results
from rnnkern import reference
from rnnkern.ops import linear_scan, moment_filter


def test_a_reference_in_closed_form():
    """For constant a and x, h_T = (1 - a^T) / (1 - a) x; its derivative with respect to a is known too."""
    a = torch.tensor([0.5, -0.25, 1.5], dtype=torch.float64, requires_grad=True)
    h, last = linear_scan(a, torch.ones(10, 1, 3, dtype=torch.float64))
    torch.testing.assert_close(last[0], (1 - a**10) / (1 - a))
    (found,) = torch.autograd.grad(last.sum(), a)
    torch.testing.assert_close(found, sum(t * a ** (t - 1) for t in range(1, 10)))
    assert torch.equal(h[-1], last)


def test_long_sums_of_a_constant_keep_their_precision():
    call = draw("linear_scan", 4000, 2, 8, dtype=torch.float32)
    agree(linear_scan, reference.linear_scan, results, [call])


@pytest.mark.parametrize("option", SCAN_OPTIONS)
def test_the_final_state_alone(option):
    call = draw("linear_scan", option=option)
    leaves = {name: x.requires_grad_() for name, x in call.tensors.items()}
    (none, alone), (_, last) = (linear_scan(**leaves, **call.options, return_sequence=x) for x in (False, True))
    assert none is None
    assert torch.equal(alone, last)
    gradients = (torch.autograd.grad(x.square().sum(), list(leaves.values())) for x in (alone, last))
    assert all(map(torch.equal, *gradients))
    with torch.no_grad():
        assert torch.equal(linear_scan(**leaves, **call.options, return_sequence=False)[1], last)


def test_resets_that_differ_from_member_to_member():
    a, x, h0, _ = scan_sample(4, 2, 3)
    reset = torch.rand(5, 4, 2) < 0.5
    found = torch.vmap(lambda reset: linear_scan(a, x, h0, reset=reset)[0])(reset)
    for k in range(5):
        assert torch.equal(found[k], linear_scan(a, x, h0, reset=reset[k])[0])


@pytest.mark.parametrize("dtype", COMPLEX[1::2], ids=str)
@pytest.mark.parametrize("option", SCAN_OPTIONS)
def test_the_references_backward_is_its_own_gradient(option, dtype):
    call = draw("linear_scan", option=option, dtype=dtype)
    leaves = {name: x.requires_grad_() for name, x in call.tensors.items()}
    h, last = reference.linear_scan(**leaves, **call.options)
    upstream = torch.randn_like(h), torch.randn_like(last)
    wanted = torch.autograd.grad((h, last), list(leaves.values()), upstream)
    state = leaves.get("state", torch.zeros_like(last))
    dx, dh0, da = reference.linear_scan_backward(*upstream, leaves["a"], state, h, **call.options)
    for found, truth in zip((da, dx, dh0), wanted, strict=False):
        torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-12)


def test_real_and_complex_go_together():
    a, x, state, kwargs = scan_sample(6, 2, 3, packed=True, dtype=torch.complex128)
    for given in ((a, x.real, state), (a.real, x, state)):
        leaves = [y.clone().requires_grad_() for y in given]
        whole = [y.detach().to(torch.complex128).requires_grad_() for y in leaves]
        results, wanted = (linear_scan(*tensors, **kwargs) for tensors in (leaves, whole))
        assert all(map(torch.equal, results, wanted))
        upstream = torch.randn_like(results[0])
        gradients = torch.autograd.grad(results[0], leaves, upstream)
        for gradient, other in zip(gradients, torch.autograd.grad(wanted[0], whole, upstream), strict=True):
            torch.testing.assert_close(gradient, other if gradient.is_complex() else other.real)


@pytest.mark.parametrize("shape", [(6, 1, 3), (1, 2, 3), (1, 1, 3)])
def test_factors_broadcast(shape):
    a, x = torch.rand(shape, dtype=torch.float64), torch.randn(6, 2, 3, dtype=torch.float64)
    assert torch.equal(linear_scan(a, x)[0], linear_scan(a.expand(6, 2, 3).contiguous(), x)[0])
    torch.autograd.gradcheck(lambda a: linear_scan(a, x), a.requires_grad_())


def test_momentum_alone_is_a_linear_scan():
    u, v0 = torch.randn(20, 3, 5), torch.randn(3, 5)
    y, v, q = filtered(moment_filter, u, v0, mu=0.8, s=0.5)
    h, last = linear_scan(torch.full((5,), 0.8), 0.5 * u, v0)
    assert q is None
    assert torch.equal(v, y[-1])
    torch.testing.assert_close((y, v), (h, last))
