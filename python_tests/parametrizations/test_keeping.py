"""Orthogonal and unitary weights that start from the existing matrix: exact keeping, QR, rectangular weights,
convolutions and blocks of gates."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import rnnkern
from rnnkern.parametrizations import orthogonal, reset_parameters, unitary, unitary_matrix

F64 = torch.float64
KEEPING = ("exp", "cayley", "scaled_cayley", "householder")


def distance(V):
    """max |V^T V - I| of the columns, or of the rows of a wide matrix, in float64."""
    V = V.detach().double()
    V = V.mT if V.shape[-2] < V.shape[-1] else V
    return (V.mT @ V - torch.eye(V.shape[-1], dtype=F64)).abs().max().item()


def q_of(W):
    """Q of the QR decomposition with a positive diagonal of R, for each tall matrix."""
    Q, R = torch.linalg.qr(W.double())
    return (Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).to(W.dtype)


def stepped(module, count=3, lr=0.1):
    optimiser = torch.optim.Adam(rnnkern.optim.param_groups(module, lr, lr))
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
    linear = nn.Linear(shape[1], shape[0], dtype=dtype)
    with torch.no_grad():
        linear.weight.copy_(nn.init.orthogonal_(torch.empty(shape, dtype=F64)))
    before = linear.weight.detach().clone()
    orthogonal(linear, "weight", orthogonal_map)
    assert torch.equal(linear.weight, before)
    assert not linear.parametrizations.weight.original.any()


@pytest.mark.parametrize("base", ["static", "dynamic"])
@pytest.mark.parametrize("orthogonal_map", KEEPING)
@pytest.mark.parametrize("shape", [(6, 6), (5, 5), (7, 4), (4, 7)])
def test_any_other_weight_becomes_q_of_its_qr_decomposition(shape, orthogonal_map, base):
    if (orthogonal_map, base) == ("householder", "dynamic"):
        return
    for _ in range(4):  # both determinants
        linear = nn.Linear(shape[1], shape[0], dtype=F64)
        before = linear.weight.detach().clone()
        orthogonal(linear, "weight", orthogonal_map, base=base)
        wanted = q_of(before) if shape[0] >= shape[1] else q_of(before.mT).mT
        torch.testing.assert_close(linear.weight, wanted)
        stepped(linear)
        assert distance(linear.weight) < 1e-14
        assert (linear.weight - wanted).abs().max() > 0.01


@pytest.mark.parametrize(("ours", "theirs"), [("exp", "matrix_exp"), ("cayley", "cayley"), ("householder",) * 2])
@pytest.mark.parametrize("shape", [(6, 6), (7, 4), (4, 7)])
def test_it_is_what_torch_keeps(shape, ours, theirs):
    linear = nn.Linear(shape[1], shape[0], dtype=F64)
    other = nn.utils.parametrizations.orthogonal(copy.deepcopy(linear), "weight", theirs)
    torch.testing.assert_close(orthogonal(linear, "weight", ours).weight, other.weight)


def test_a_matrix_of_low_rank_and_the_zero_matrix():
    for W in (torch.zeros(5, 5), torch.ones(5, 5), torch.zeros(5, 3)):
        linear = nn.Linear(W.shape[1], 5)
        with torch.no_grad():
            linear.weight.copy_(W)
        assert distance(orthogonal(linear, "weight").weight) < 1e-6


@pytest.mark.parametrize("function", [orthogonal, unitary])
def test_what_is_not_finite_cannot_be_kept(function):
    module = nn.Module()
    W = torch.full((3, 3), math.nan)
    module.weight = nn.Parameter(W if function is orthogonal else W + 0j)
    with pytest.raises(ValueError, match="must be finite to be kept, got NaN or infinity; draw a new one with `init`"):
        function(module, "weight", "exp")
    assert distance(orthogonal(nn.Linear(3, 3), "weight", init="haar").weight) < 1e-6


def test_init_draws_anew_and_reset_parameters_too():
    linear = nn.Linear(6, 6)
    before = nn.init.orthogonal_(linear.weight).detach().clone()
    drawn = orthogonal(copy.deepcopy(linear), "weight", init="henaff").weight
    assert (drawn - before).abs().max() > 0.1
    kept = orthogonal(linear, "weight")
    reset_parameters(kept, "weight")
    assert (kept.weight - before).abs().max() > 0.1
    assert distance(kept.weight) < 1e-6


# ---- reflections


@pytest.mark.parametrize("determinant", [1, -1])
@pytest.mark.parametrize("size", [5, 6])
def test_reflections_keep_either_determinant(size, determinant):
    W = q_of(torch.randn(size, size, dtype=F64))
    W[0] *= determinant * torch.linalg.det(W).sign()
    linear = nn.Linear(size, size, dtype=F64)
    with torch.no_grad():
        linear.weight.copy_(W)
    orthogonal(linear, "weight", "householder")
    torch.testing.assert_close(linear.weight, W)
    vectors = linear.parametrizations.weight.original
    dead = [not v.any() for v in vectors.mT]
    assert dead == [False] * (size - 1) + [determinant != (-1) ** size]
    stepped(linear)
    assert [not v.any() for v in vectors.mT] == dead
    assert vectors.isfinite().all()


@pytest.mark.parametrize("shape", [(6, 6), (5, 5), (5, 2), (2, 5)])
@pytest.mark.parametrize("negative", [0, 1, 2])
def test_reflections_keep_the_identity_and_still_train(shape, negative):
    linear = nn.Linear(shape[1], shape[0], dtype=F64)
    W = torch.eye(*shape, dtype=F64)
    W.diagonal()[:negative] *= -1
    with torch.no_grad():
        linear.weight.copy_(W)
    orthogonal(linear, "weight", "householder")
    torch.testing.assert_close(linear.weight, W)
    vectors = linear.parametrizations.weight.original.detach()
    assert int((vectors.norm(dim=0) > 0.9).sum()) >= min(shape) - 1
    assert (stepped(linear).weight - W).abs().max() > 0.01


def test_fewer_reflections_keep_the_first_columns():
    linear = nn.Linear(6, 6, dtype=F64)
    wanted = q_of(linear.weight.detach())
    orthogonal(linear, "weight", "householder", reflections=2)
    torch.testing.assert_close(linear.weight[:, :2], wanted[:, :2])
    assert distance(linear.weight) < 1e-14


# ---- rectangular weights


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (2, 5, 3)])
@pytest.mark.parametrize("orthogonal_map", ["exp", "cayley", "scaled_cayley"])
def test_value_and_gradient_of_rectangular_weights(orthogonal_map, shape):
    module = nn.Module()
    module.weight = nn.Parameter(torch.randn(shape, dtype=F64))
    orthogonal(module, "weight", orthogonal_map)
    found = module.parametrizations.weight
    A, B = found.original, found[0].base
    n, k = max(shape[-2:]), min(shape[-2:])
    assert A.shape == (*shape[:-2], n, k)
    G = torch.randn(shape, dtype=F64)
    for scale in (0, 0.5):  # at the base, where one product is enough, and away from it
        with torch.no_grad():
            A.copy_(scale * torch.randn(A.shape, dtype=F64))
        S = rnnkern.reference.skew(torch.cat([A, A.new_zeros(*A.shape[:-1], n - k)], -1))
        eye = torch.eye(n, dtype=F64)
        V = B @ (torch.matrix_exp(S) if orthogonal_map == "exp" else torch.linalg.solve(eye + S, eye - S))
        if orthogonal_map == "scaled_cayley":
            V = V * torch.tensor([-1.0] * (n // 2) + [1.0] * (n - n // 2), dtype=F64)
        wanted = V[..., :k] if shape[-2] > shape[-1] else V[..., :k].mT
        torch.testing.assert_close(module.weight, wanted)
        torch.testing.assert_close(*(torch.autograd.grad((G * W).sum(), A)[0] for W in (module.weight, wanted)))


def test_rectangular_weights_may_be_assigned_copied_moved_and_loaded():
    module = stepped(orthogonal(nn.Linear(7, 4), "weight", base="dynamic", rebase_every=2))
    V = nn.init.orthogonal_(torch.empty(4, 7))
    again = orthogonal(nn.Linear(7, 4), "weight", base="dynamic", rebase_every=2)
    again.load_state_dict(module.state_dict())
    for other in (again, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other.weight, module.weight)
    module.weight = V
    assert torch.equal(module.weight, V)
    with pytest.raises(ValueError, match=r"the weight must be \(4, 7\), got \(7, 4\)"):
        module.weight = V.mT
    with pytest.raises(ValueError, match="the weight must be orthogonal"):
        module.weight = 2 * V
    assert distance(module.double().weight) < 1e-14
    linear = orthogonal(nn.Linear(3, 5, device="meta"), "weight")
    assert (linear.weight.shape, linear.weight.device.type) == ((5, 3), "meta")


@pytest.mark.parametrize("base", ["static", "dynamic"])
def test_rectangular_weights_do_not_drift(base):
    module = orthogonal(nn.Linear(24, 16, bias=False), "weight", base=base)
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.SGD(module.parameters(), 1e-3)
    for _ in range(2000):
        optimiser.zero_grad()
        (module.weight * torch.randn(16, 24, generator=generator)).sum().backward()
        optimiser.step()
    assert distance(module.weight) < 2e-6


@pytest.mark.parametrize("orthogonal_map", ["householder", "givens"])
def test_factors_of_rectangular_weights(orthogonal_map):
    module = orthogonal(nn.Linear(4, 7, dtype=F64), "weight", orthogonal_map, init="henaff")
    assert module.parametrizations.weight.original.shape == ((7, 4) if orthogonal_map == "householder" else (7, 3))
    assert module.weight.shape == (7, 4)
    assert distance(stepped(module).weight) < 1e-14


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolutions_by_group(kind, groups):
    conv = kind(4, 8, 3, groups=groups, dtype=F64)
    blocks = conv.weight.detach().flatten(1).unflatten(0, (groups, -1)).clone()
    orthogonal(conv, "weight")
    now = conv.weight.flatten(1).unflatten(0, (groups, -1))
    tall = blocks.shape[-2] >= blocks.shape[-1]
    wanted = q_of(blocks if tall else blocks.mT)
    torch.testing.assert_close(now, wanted if tall else wanted.mT)
    x = torch.randn(2, 4, *[5] * (conv.weight.dim() - 2), dtype=F64)
    conv(x).square().sum().backward()
    assert conv.parametrizations.weight.original.grad.any()
    assert distance(stepped(conv).weight.flatten(1).unflatten(0, (groups, -1))) < 1e-13


# ---- blocks of gates


@pytest.mark.parametrize("package", [nn, rnnkern.nn])
@pytest.mark.parametrize(
    ("name", "gates"), [("LSTM", 4), ("GRU", 3), ("LSTMCell", 4), ("GRUCell", 3), ("RNN", 1), ("RNNCell", 1)]
)
def test_each_gate_of_a_recurrent_layer(package, name, gates):
    module = getattr(package, name)(3, 6)
    ending = "" if name.endswith("Cell") else "_l0"
    blocks = getattr(module, f"weight_hh{ending}").detach().unflatten(0, (gates, 6)).clone()
    wide = getattr(module, f"weight_ih{ending}").detach().unflatten(0, (gates, 6)).clone()
    orthogonal(module, f"weight_hh{ending}")
    orthogonal(module, f"weight_ih{ending}")
    optimiser = torch.optim.Adam(rnnkern.optim.param_groups(module, 0.1, 0.1))
    for step in range(3):
        for kind, before in ((f"weight_hh{ending}", blocks), (f"weight_ih{ending}", wide)):
            now = getattr(module, kind).unflatten(0, (gates, 6))
            assert distance(now) < 1e-6
            if step == 0:
                torch.testing.assert_close(now, q_of(before))
        optimiser.zero_grad()
        h = torch.randn(2, 6)
        state = (h, h) if name == "LSTMCell" else h
        output = module(torch.randn(2, 3), state) if ending == "" else module(torch.randn(4, 2, 3))
        (output[0] if isinstance(output, tuple) else output).sum().backward()
        optimiser.step()
    assert (getattr(module, f"weight_hh{ending}").unflatten(0, (gates, 6)) - q_of(blocks)).abs().max() > 0.01


def test_projections_and_gates_by_number():
    lstm = nn.LSTM(3, 6, proj_size=2)
    assert distance(orthogonal(lstm, "weight_hh_l0").weight_hh_l0.unflatten(0, (4, 6))) < 1e-6
    assert distance(orthogonal(lstm, "weight_hr_l0").weight_hr_l0) < 1e-6
    whole = nn.LSTM(3, 6)
    assert distance(orthogonal(whole, "weight_hh_l0", gates=1).weight_hh_l0) < 1e-6
    linear = orthogonal(nn.Linear(3, 6), "weight", gates=2)
    assert distance(linear.weight.unflatten(0, (2, 3))) < 1e-6
    for wrong in (0, 4, True, 2.0):
        with pytest.raises(ValueError, match=f"`gates` must be a positive divisor of the 6 rows, got {wrong}"):
            orthogonal(nn.Linear(3, 6), "weight", gates=wrong)


# ---- factors that cannot keep a matrix, and unitary weights


def test_factors_that_need_init_say_so():
    with pytest.raises(ValueError, match=r"must be one of .* \(rotations cannot keep the existing matrix\), got None"):
        orthogonal(nn.Linear(4, 4), "weight", "givens")
    for unitary_map in ("fourier", "givens"):
        module = nn.Module()
        module.W = nn.Parameter(torch.eye(4) + 0j)
        with pytest.raises(
            ValueError, match=r"`init` must be 'uniform' .* cannot keep the existing matrix\), got None"
        ):
            unitary(module, "W", unitary_map)
        assert distance_complex(unitary(module, "W", unitary_map, init="uniform").W) < 1e-6


def distance_complex(W):
    return (W.mH @ W - torch.eye(W.shape[-1])).abs().max().item()


@pytest.mark.parametrize("unitary_map", ["exp", "scaled_cayley"])
def test_a_unitary_weight_is_kept(unitary_map):
    kept = unitary_matrix(torch.empty(5, 5, dtype=torch.complex64))
    other = torch.randn(5, 5, dtype=torch.complex64)
    Q, R = torch.linalg.qr(other.to(torch.complex128))
    for W, wanted in ((kept, kept), (other, (Q * R.diagonal().sgn()).to(torch.complex64))):
        module = nn.Module()
        module.W = nn.Parameter(W.clone())
        unitary(module, "W", unitary_map)
        torch.testing.assert_close(module.W, wanted)
    module = nn.Module()
    module.W = nn.Parameter(kept.clone())
    assert torch.equal(unitary(module, "W", "exp").W, kept)
