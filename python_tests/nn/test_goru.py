"""The orthogonal rows of a gated weight (GORU): they stay orthogonal, and a weight may be assigned."""

import pytest
import torch

from rnnkern.parametrizations import orthogonal_gate, reset_parameters

F64 = torch.float64


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
    with pytest.raises(ValueError, match=r"`weight_hh` must be \(..., 4\*N, N\), got \(9, 3\)"):
        orthogonal_gate(torch.nn.GRUCell(2, 3), "weight_hh", gates=4)
    with pytest.raises(ValueError, match="`gates` must be a positive integer, got 0"):
        orthogonal_gate(torch.nn.GRUCell(2, 3), "weight_hh", gates=0)
