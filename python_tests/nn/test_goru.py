"""GORU against a loop over its equations, and as a module."""

import pytest
import torch

import rnnkern
from rnnkern.nn import GORU
from rnnkern.parametrizations import orthogonal_gate, reset_parameters

T, B, I, H = 6, 3, 2, 4  # noqa: E741
F64 = torch.float64
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


@torch.no_grad()
def made(*args, by=0.3, dtype=F64, **options):
    """A GORU with a nonzero A."""
    module = GORU(*(args or (I, H)), dtype=dtype, **options)
    for name, p in module.named_parameters():
        if name.endswith("original0"):
            p.add_(by * torch.randn(p.shape))
    return module


@pytest.mark.parametrize("base", ["static", "dynamic"])
def test_the_candidate_stays_orthogonal(base):
    module = GORU(I, H, base=base)
    optimiser = torch.optim.RMSprop(rnnkern.optim.param_groups(module, 0.01))
    assert [len(group["params"]) for group in optimiser.param_groups] == [5, 1]
    before = module.weight_hh_l0.detach().clone()
    for _ in range(300):
        optimiser.zero_grad()
        module(torch.randn(T, B, I))[0].square().sum().backward()
        optimiser.step()
    moved = (module.weight_hh_l0 - before).abs()
    assert moved[: 2 * H].max() > 0.01
    assert moved[2 * H :].max() > 0.01
    Q = module.weight_hh_l0[2 * H :].detach().double()
    assert (Q.T @ Q - torch.eye(H, dtype=F64)).abs().max() < 2e-6


def test_10_000_updates_of_a_moving_base_stay_orthogonal():
    cell = orthogonal_gate(torch.nn.GRUCell(2, 16), "weight_hh", base="dynamic", rebase_every=10)
    A, begun = cell.parametrizations.weight_hh.original0, cell.weight_hh[32:].detach().clone()
    optimiser, generator = torch.optim.SGD([A], 1e-3), torch.Generator().manual_seed(0)
    for _ in range(10_000):
        A.grad = torch.randn(16, 16, generator=generator)
        optimiser.step()
    Q = cell.weight_hh[32:].detach()
    assert (Q - begun).abs().max() > 0.1
    assert (Q.double().T @ Q.double() - torch.eye(16, dtype=F64)).abs().max() < 2e-6


def test_a_weight_may_be_assigned():
    cell = orthogonal_gate(torch.nn.GRUCell(2, 3, dtype=F64), "weight_hh")
    Q, _ = torch.linalg.qr(torch.randn(3, 3, dtype=F64))
    weight = torch.cat([torch.randn(6, 3, dtype=F64), Q])
    cell.weight_hh = weight
    torch.testing.assert_close(cell.weight_hh, weight)
    with pytest.raises(ValueError, match=r"the weight must be \(9, 3\), got \(3, 3\)"):
        cell.weight_hh = Q
    with pytest.raises(ValueError, match="the weight must be orthogonal"):
        cell.weight_hh = weight.flip(0)
    reset_parameters(cell, "weight_hh")
    assert not torch.equal(cell.weight_hh, weight)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="`base` must be one of"):
        GORU(I, H, base="moving")
    with pytest.raises(ValueError, match=r"`weight_hh` must be \(..., 4\*N, N\), got \(9, 3\)"):
        orthogonal_gate(torch.nn.GRUCell(2, 3), "weight_hh", gates=4)
    with pytest.raises(ValueError, match="`gates` must be a positive integer, got 0"):
        orthogonal_gate(torch.nn.GRUCell(2, 3), "weight_hh", gates=0)
