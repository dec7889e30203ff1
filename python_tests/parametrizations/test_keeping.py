"""Orthogonal and unitary weights begin at the existing matrix, also in convolutions and blocks of gates."""

import copy

import pytest
import torch
from torch import nn

import rnnkern
from python_tests.samples.parametrizations import from_unitary
from rnnkern.parametrizations import orthogonal, reset_parameters, unitary

F64 = torch.float64
KEEPING = ("exp", "cayley", "scaled_cayley", "householder")


def linear(*shape, dtype=F64):
    return nn.Linear(shape[1], shape[0], dtype=dtype)


def q_of(W):
    """Q of the QR decomposition with a positive diagonal of R, for each matrix or for its transpose if it is wide."""
    if W.shape[-2] < W.shape[-1]:
        return q_of(W.mH).mH
    Q, R = torch.linalg.qr(W.to(torch.promote_types(W.dtype, F64)))
    return (Q * R.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2)).to(W.dtype)


def stepped(module, count=3):
    optimiser = torch.optim.Adam(rnnkern.optim.param_groups(module, 0.1, 0.1))
    for _ in range(count):
        optimiser.zero_grad()
        W = module.weight
        (W.sin() * torch.arange(W.numel()).view(W.shape)).sum().backward()
        optimiser.step()
    return module


# ---- what is kept


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
@pytest.mark.parametrize("orthogonal_map", KEEPING[:3])
@pytest.mark.parametrize("shape", [(6, 6), (6, 4), (4, 6)])
def test_an_orthogonal_weight_is_kept_to_the_bit(shape, orthogonal_map, dtype):
    module = linear(*shape, dtype=dtype)
    with torch.no_grad():
        module.weight.copy_(nn.init.orthogonal_(torch.empty(shape, dtype=F64)))
    before, weight = module.weight.detach().clone(), module.weight
    orthogonal(module, "weight", orthogonal_map)
    assert torch.equal(module.weight, before)
    assert module.parametrizations.weight.original is weight
    assert not weight.any()


@pytest.mark.parametrize("unitary_map", ["exp", "scaled_cayley"])
def test_a_unitary_weight_is_kept(unitary_map):
    other = nn.Linear(5, 5, bias=False, dtype=torch.complex64)
    kept = copy.deepcopy(other)
    with torch.no_grad():
        kept.weight.copy_(q_of(other.weight))
    for module in (kept, other):
        wanted = q_of(other.weight.detach())
        torch.testing.assert_close(unitary(module, "weight", unitary_map).weight, wanted)
        assert module is other or unitary_map == "scaled_cayley" or torch.equal(module.weight, wanted)


@pytest.mark.parametrize("base", ["static", "dynamic"])
@pytest.mark.parametrize("orthogonal_map", KEEPING)
@pytest.mark.parametrize("shape", [(6, 6), (5, 5), (7, 4), (4, 7)])
def test_any_other_weight_becomes_q_of_its_qr_decomposition(shape, orthogonal_map, base):
    if (orthogonal_map, base) == ("householder", "dynamic"):
        return
    for _ in range(4):  # both determinants
        module = linear(*shape)
        wanted = q_of(module.weight.detach())
        orthogonal(module, "weight", orthogonal_map, base=base)
        torch.testing.assert_close(module.weight, wanted)
        stepped(module)
        assert from_unitary(module.weight) < 1e-14
        assert (module.weight - wanted).abs().max() > 0.01


@pytest.mark.parametrize(("ours", "theirs"), [("exp", "matrix_exp"), ("cayley", "cayley"), ("householder",) * 2])
@pytest.mark.parametrize("shape", [(6, 6), (7, 4), (4, 7)])
def test_it_is_what_torch_keeps(shape, ours, theirs):
    module = linear(*shape)
    other = nn.utils.parametrizations.orthogonal(copy.deepcopy(module), "weight", theirs)
    torch.testing.assert_close(orthogonal(module, "weight", ours).weight, other.weight)


@pytest.mark.parametrize("W", [torch.zeros(5, 5), torch.ones(5, 5), torch.zeros(5, 3)], ids=["zero", "rank 1", "tall"])
def test_a_matrix_of_low_rank_and_a_buffer(W):
    module = nn.Module()
    module.register_buffer("V", W)
    assert from_unitary(orthogonal(module, "V").V) < 1e-6
    assert list(module.parameters()) == []


def test_init_draws_anew_and_reset_parameters_too():
    module = linear(6, 6, dtype=torch.float32)
    before = nn.init.orthogonal_(module.weight).detach().clone()
    drawn = orthogonal(copy.deepcopy(module), "weight", init="henaff").weight
    assert (drawn - before).abs().max() > 0.1
    kept = orthogonal(module, "weight")
    reset_parameters(kept, "weight")
    assert (kept.weight - before).abs().max() > 0.1
    assert from_unitary(kept.weight) < 1e-6


# ---- reflections


@pytest.mark.parametrize("determinant", [1, -1])
@pytest.mark.parametrize("size", [5, 6])
def test_reflections_keep_either_determinant(size, determinant):
    W = q_of(torch.randn(size, size, dtype=F64))
    W[0] *= determinant * torch.linalg.det(W).sign()
    module = linear(size, size)
    with torch.no_grad():
        module.weight.copy_(W)
    orthogonal(module, "weight", "householder")
    torch.testing.assert_close(module.weight, W)
    vectors = module.parametrizations.weight.original
    dead = [not v.any() for v in vectors.mT]
    assert dead == [False] * (size - 1) + [determinant != (-1) ** size]
    stepped(module)
    assert [not v.any() for v in vectors.mT] == dead
    assert vectors.isfinite().all()


@pytest.mark.parametrize("shape", [(6, 6), (5, 5), (5, 2), (2, 5)])
@pytest.mark.parametrize("negative", [0, 1, 2])
def test_reflections_keep_the_identity_and_still_train(shape, negative):
    module = linear(*shape)
    W = torch.eye(*shape, dtype=F64)
    W.diagonal()[:negative] *= -1
    with torch.no_grad():
        module.weight.copy_(W)
    orthogonal(module, "weight", "householder")
    torch.testing.assert_close(module.weight, W)
    vectors = module.parametrizations.weight.original.detach()
    assert int((vectors.norm(dim=0) > 0.9).sum()) >= min(shape) - 1
    assert (stepped(module).weight - W).abs().max() > 0.01


def test_fewer_reflections_keep_the_first_columns():
    module = linear(6, 6)
    wanted = q_of(module.weight.detach())
    orthogonal(module, "weight", "householder", reflections=2)
    torch.testing.assert_close(module.weight[:, :2], wanted[:, :2])
    assert from_unitary(module.weight) < 1e-14


# ---- convolutions and blocks of gates


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolutions_by_group(kind, groups):
    conv = kind(4, 8, 3, groups=groups, dtype=F64)
    wanted = q_of(conv.weight.detach().flatten(1).unflatten(0, (groups, -1)))
    orthogonal(conv, "weight")
    torch.testing.assert_close(conv.weight.flatten(1).unflatten(0, (groups, -1)), wanted)
    x = torch.randn(2, 4, *[5] * (conv.weight.dim() - 2), dtype=F64)
    conv(x).square().sum().backward()
    assert conv.parametrizations.weight.original.grad.any()
    assert from_unitary(stepped(conv).weight.flatten(1).unflatten(0, (groups, -1))) < 1e-13


@pytest.mark.parametrize("package", [nn, rnnkern.nn])
@pytest.mark.parametrize(
    ("name", "gates"), [("LSTM", 4), ("GRU", 3), ("LSTMCell", 4), ("GRUCell", 3), ("RNN", 1), ("RNNCell", 1)]
)
def test_each_gate_of_a_recurrent_layer(package, name, gates):
    module = getattr(package, name)(3, 6)
    ending = "" if name.endswith("Cell") else "_l0"
    wanted = {}
    for kind in (f"weight_hh{ending}", f"weight_ih{ending}"):
        wanted[kind] = q_of(getattr(module, kind).detach().unflatten(0, (gates, 6)))
        orthogonal(module, kind)
    optimiser = torch.optim.Adam(rnnkern.optim.param_groups(module, 0.1, 0.1))
    for step in range(3):
        for kind, Q in wanted.items():
            now = getattr(module, kind).unflatten(0, (gates, 6))
            assert from_unitary(now) < 1e-6
            if step == 0:
                torch.testing.assert_close(now, Q)
            else:
                assert (now - Q).abs().max() > 0.01
        optimiser.zero_grad()
        h = torch.randn(2, 6)
        state = (h, h) if name == "LSTMCell" else h
        output = module(torch.randn(4, 2, 3)) if ending else module(torch.randn(2, 3), state)
        (output[0] if isinstance(output, tuple) else output).sum().backward()
        optimiser.step()


def test_projections_and_gates_by_number():
    lstm = nn.LSTM(3, 6, proj_size=2)
    assert from_unitary(orthogonal(lstm, "weight_hh_l0").weight_hh_l0.unflatten(0, (4, 6))) < 1e-6
    assert from_unitary(orthogonal(lstm, "weight_hr_l0").weight_hr_l0) < 1e-6
    whole = nn.LSTM(3, 6)
    assert from_unitary(orthogonal(whole, "weight_hh_l0", gates=1).weight_hh_l0) < 1e-6
    module = orthogonal(linear(6, 3), "weight", gates=2)
    assert from_unitary(module.weight.unflatten(0, (2, 3))) < 1e-6
