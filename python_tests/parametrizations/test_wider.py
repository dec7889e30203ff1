"""A matrix that is orthogonal up to rounding in one dtype is not so in a wider dtype, unless it is corrected after the
conversion."""

import copy

import pytest
import torch

import rnnkern
from rnnkern.parametrizations import orthogonal, orthogonal_gate, schur, spectral_margin, stable

N = 20
LIMIT = 1e-14  # limit of max |B^T B - I| in float64
KINDS = {
    "exp": orthogonal,
    "cayley": lambda module, name: orthogonal(module, name, orthogonal_map="scaled_cayley"),
    "dynamic": lambda module, name: orthogonal(module, name, base="dynamic"),
    "schur": schur,
    "stable": stable,
    "band": spectral_margin,
}


def made(kind, dtype=torch.float32):
    module = KINDS[kind](torch.nn.Linear(N, N, bias=False, dtype=dtype), "weight")
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, dtype=dtype) / 10)
    return module


def bases(module):
    found = [buffer for name, buffer in module.named_buffers() if ".base" in name]
    assert found
    return found


def distance(V):
    return (V.mT.double() @ V.double() - torch.eye(V.shape[-1], dtype=torch.float64)).abs().max().item()


@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_base_is_orthogonal_in_the_dtype_that_it_comes_to(kind, narrow):
    module = made(kind).to(narrow)
    before = [B.clone() for B in bases(module)]
    module.double()
    assert max(map(distance, bases(module))) < LIMIT
    for B, narrower in zip(bases(module), before, strict=True):
        torch.testing.assert_close(B, narrower.double(), rtol=0, atol=2 * torch.finfo(narrow).eps)


def test_an_orthogonal_weight_is_so_in_float64():
    rnn = rnnkern.nn.ExpRNN(3, N, 2).double()
    for name in ("weight_hh_l0", "weight_hh_l1"):
        assert distance(getattr(rnn, name)) < LIMIT


def test_a_candidate():
    gru = orthogonal_gate(torch.nn.GRUCell(3, N), "weight_hh").double()
    assert distance(gru.weight_hh[2 * N :]) < LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_a_narrower_dtype(kind):
    module = made(kind, torch.float64)
    module.load_state_dict(made(kind).state_dict())
    assert max(map(distance, bases(module))) < LIMIT


@pytest.mark.parametrize("kind", ["exp", "cayley"])
def test_an_assigned_matrix_of_a_narrower_dtype(kind):
    module = made(kind, torch.float64)
    module.weight = torch.linalg.qr(torch.randn(N, N))[0]
    assert distance(module.weight) < LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_no_bit_changes_where_the_dtype_does_not_widen(kind):
    module = made(kind, torch.float64)
    before = [B.clone() for B in bases(module)]
    copied = copy.deepcopy(module)
    module.load_state_dict(copied.state_dict())
    assert all(map(torch.equal, bases(module.double()), before))
    module.float()
    assert all(torch.equal(B, b.float()) for B, b in zip(bases(module), before, strict=True))
    module.to("meta").double()
