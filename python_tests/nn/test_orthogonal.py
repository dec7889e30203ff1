"""Orthogonal networks: their weights, how they begin, what training keeps, penalties, and options of the weights."""

import copy
import pickle

import pytest
import torch

import rnnkern
from python_tests.samples.layers import moved
from rnnkern import nn, parametrizations, reference

T, B, I, H = 6, 3, 2, 5  # noqa: E741
F64 = torch.float64
MODULES = [nn.ExpRNN, nn.CayleyRNN, nn.NonNormalRNN, nn.HouseholderRNN, nn.EURNN, nn.SpectralRNN, nn.OrthogonalInitRNN]
modules = pytest.mark.parametrize("cls", MODULES, ids=lambda cls: cls.__name__)


def spectral(weight):
    A, C, p = (getattr(weight, f"original{k}") for k in range(3))
    U, V = (base @ reference.skew_exp(x) for base, x in ((weight[0].base_u, A), (weight[0].base_v, C)))
    return U @ torch.diag(1 + 2 * 0.1 * (torch.sigmoid(p) - 0.5)) @ V.T


def schur(weight):
    A, theta, gamma, below = (getattr(weight, f"original{k}") for k in range(4))
    return reference.schur_weight(weight[0].base @ reference.skew_exp(A), theta, gamma, below)


def gated(weight):
    return torch.cat([weight.original1, weight[0].base @ reference.skew_exp(weight.original0)], -2)


WEIGHTS = {
    "ExpRNN": lambda weight: weight[0].base @ reference.skew_exp(weight.original),
    "CayleyRNN": lambda weight: weight[0].base @ reference.cayley(weight.original, weight[0].scale),
    "NonNormalRNN": schur,
    "HouseholderRNN": lambda weight: reference.householder_product(weight.original),
    "EURNN": lambda weight: reference.givens_product(weight.original, size=8),
    "SpectralRNN": spectral,
    "GORU": gated,
}
"""The recurrent weight from the parameters, by the reference."""


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_recurrent_weight(name):
    module = moved(name, dtype=F64, num_layers=2)
    for k in range(2):
        wanted = WEIGHTS[name](module.parametrizations[f"weight_hh_l{k}"])
        torch.testing.assert_close(getattr(module, f"weight_hh_l{k}"), wanted)


MOVING = {"base": "dynamic", "rebase_every": 5}


@pytest.mark.parametrize(
    ("cls", "options"),
    [("ExpRNN", MOVING), ("CayleyRNN", MOVING), ("NonNormalRNN", MOVING), ("HouseholderRNN", {"reflections": 5}),
     ("EURNN", {"rotation_layers": 4}), ("EURNN", {"style": "butterfly"}), ("SpectralRNN", {"margin": 0}),
     ("EURNN", {"style": "butterfly", "fused": True}), ("GORU", MOVING), ("UnitaryRNN", {}),
     ("UnitaryRNN", {"unitary_map": "givens"}), ("UnitaryRNN", {"unitary_map": "scaled_cayley", **MOVING})],
)  # fmt: skip
def test_orthogonal_as_trained(cls, options):
    module = getattr(nn, cls)(I, 16, **options)
    head = torch.nn.LazyLinear(1)
    x = torch.randn(T, B, I)
    head(module(x)[0])
    optimiser = torch.optim.RMSprop(rnnkern.optim.param_groups(torch.nn.ModuleList([module, head]), 1e-3))
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = (head(module(x)[0][-1]) - x[0, :, :1]).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    parametrization = module.parametrizations.weight_hh_l0[0]
    if options is MOVING:
        assert parametrization.steps == 40
    V = parametrization.base if cls == "NonNormalRNN" else module.weight_hh_l0[-16:]
    assert (V.mH @ V - torch.eye(16)).abs().max() < 2e-6


@modules
def test_what_is_drawn(cls):
    module = cls(30, 50, bidirectional=True)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    weights = [getattr(module, f"weight_hh_{suffix}").detach().clone() for suffix in ("l0", "l0_reverse")]
    module.reset_parameters()
    for suffix, weight in zip(("l0", "l0_reverse"), weights, strict=True):
        for drawn in (before, module.state_dict()):
            assert drawn[f"weight_ih_{suffix}"].std() == pytest.approx((2 / 80) ** 0.5, rel=0.1)
            bias = drawn[f"modrelu_bias_{suffix}"]
            assert 0.005 < bias.abs().max() < 0.01
        assert not torch.equal(module.state_dict()[f"weight_ih_{suffix}"], before[f"weight_ih_{suffix}"])
        V = getattr(module, f"weight_hh_{suffix}")
        assert (V.T @ V - torch.eye(50)).abs().max() < 2e-6
        assert not torch.equal(V, weight)
    assert not hasattr(module, "bias_ih_l0")


def test_what_is_drawn_of_gates_and_complex_weights():
    goru, unitary = nn.GORU(30, 50), nn.UnitaryRNN(30, 50)
    assert goru.weight_hh_l0[:100].abs().max() <= 50**-0.5
    assert unitary.weight_ih_l0.std().item() == pytest.approx((2 / 130) ** 0.5, rel=0.1)
    assert all(0.005 < module.modrelu_bias_l0.abs().max() <= 0.01 for module in (goru, unitary))


@pytest.mark.parametrize(
    ("cls", "options", "shape"),
    [("HouseholderRNN", {}, (8, 8)), ("HouseholderRNN", {"reflections": 3}, (8, 3)),
     ("HouseholderRNN", {"num_heads": 2}, (2, 4, 4)), ("EURNN", {}, (8, 4)), ("EURNN", {"rotation_layers": 2}, (2, 4)),
     ("EURNN", {"rotation_layers": 2, "style": "butterfly"}, (2, 4)), ("EURNN", {"num_heads": 2}, (2, 4, 2))],
)  # fmt: skip
def test_factors_have_the_shapes_of_their_options(cls, options, shape):
    module = getattr(nn, cls)(I, 8, 2, **options)
    assert {weight.original.shape for weight in module.parametrizations.values()} == {shape}


def test_irnn():
    module = nn.OrthogonalInitRNN(I, 4, init="identity", nonlinearity="relu", num_layers=2)
    assert torch.equal(module.weight_hh_l1, torch.eye(4))
    assert module.nonlinearity == "relu"
    heads = nn.OrthogonalInitRNN(I, 4, init="henaff", num_heads=2).weight_hh_l0
    torch.testing.assert_close(heads.mT @ heads, torch.eye(2).expand(2, 2, 2))


@modules
def test_options_reach_the_layer_and_its_weight(cls):
    module = cls(I, 4, 2, bias=True, zoneout=0.1, num_heads=2, dropout=0.5, nonlinearity="tanh", init="identity")
    assert (module.zoneout, module.num_heads, module.dropout) == (0.1, 2, 0.5)
    assert module.bias_hh_l1.shape == (4,)
    if cls is not nn.NonNormalRNN:
        assert torch.equal(module.weight_hh_l1.abs(), torch.eye(2).expand(2, 2, 2))
    module(torch.randn(T, B, I))[0].sum().backward()


@pytest.mark.parametrize("cls", [nn.ExpRNN, nn.CayleyRNN, nn.NonNormalRNN])
def test_the_base_of_each_layer_moves(cls):
    module = cls(I, H, 2, base="dynamic", rebase_every=7)
    assert [p[0].rebase_every for p in module.parametrizations.values()] == [7, 7]
    assert all(p[0].dynamic for p in module.parametrizations.values())


def test_replace_keeps_an_orthogonal_weight():
    theirs = torch.nn.RNN(I, H, dtype=F64)
    parametrizations.orthogonal(theirs, "weight_hh_l0", base="dynamic")
    x = torch.randn(T, B, I, dtype=F64)
    wanted = theirs(x)
    for swap in (rnnkern.replace, rnnkern.restore):
        assert len(swap(theirs).replaced) == 1
        torch.testing.assert_close(theirs(x), wanted)
        torch.testing.assert_close(pickle.loads(pickle.dumps(theirs))(x), wanted)
        torch.testing.assert_close(copy.copy(theirs)(x), wanted)


def test_schur_penalty():
    model = torch.nn.ModuleList([moved("NonNormalRNN", num_layers=2), torch.nn.Linear(2, 2)])
    gammas = [p.original2 for p in model[0].parametrizations.values()]
    wanted = sum(((1 - gamma) ** 2).sum() for gamma in gammas)
    penalty = rnnkern.nn.schur_penalty(model)
    torch.testing.assert_close(penalty, wanted)
    torch.testing.assert_close(torch.autograd.grad(penalty, gammas), tuple(2 * (gamma - 1) for gamma in gammas))
    with pytest.raises(ValueError, match="`model` must contain a weight in Schur form"):
        rnnkern.nn.schur_penalty(nn.ExpRNN(2, 3))


def test_orthogonal_penalty():
    layers = [
        nn.RNN(I, 4, 2, bidirectional=True, dtype=F64),
        torch.nn.RNN(2, 3, dtype=F64),
        nn.RNN(I, 4, num_heads=2, dtype=F64),
    ]
    model = torch.nn.ModuleList([*layers, torch.nn.Linear(2, 2), rnnkern.nn.LSTM(2, 3)])
    weights = [p for layer in layers for name, p in layer.named_parameters() if name.startswith("weight_hh")]
    assert len(weights) == 6
    grams = [V.mT @ V - torch.eye(V.shape[-1], dtype=F64) for V in weights]
    penalty = rnnkern.nn.orthogonal_penalty(model)
    torch.testing.assert_close(penalty, sum((G**2).sum() for G in grams))
    found = torch.autograd.grad(penalty, weights)
    torch.testing.assert_close(found, tuple(4 * V @ G for V, G in zip(weights, grams, strict=True)))
    with pytest.raises(ValueError, match="orthogonal_penalty: `model` must contain an Elman network"):
        rnnkern.nn.orthogonal_penalty(rnnkern.nn.LSTM(2, 3))


def test_the_spectral_penalty_is_of_the_singular_value_furthest_from_one():
    layers = [nn.RNN(I, 4, dtype=F64), nn.RNN(I, 4, num_heads=2, dtype=F64)]
    model = torch.nn.ModuleList(layers)
    weights = [V for layer in layers for V in (layer.weight_hh_l0.view(-1, *layer.weight_hh_l0.shape[-2:]))]
    wanted = sum(max((s * s - 1) ** 2 for s in torch.linalg.svdvals(V.detach()).tolist()) for V in weights)
    penalty = rnnkern.nn.orthogonal_penalty(model, norm="spectral")
    assert penalty.item() == pytest.approx(wanted, rel=1e-12)
    V = layers[0].weight_hh_l0
    U, s, Vh = torch.linalg.svd(V.detach())
    k = (s * s - 1).abs().argmax()
    wanted = 4 * (s[k] ** 2 - 1) * s[k] * U[:, k, None] * Vh[k]
    torch.testing.assert_close(torch.autograd.grad(penalty, V)[0], wanted)
    exact = rnnkern.nn.OrthogonalInitRNN(I, 4, dtype=F64)
    loss = rnnkern.nn.orthogonal_penalty(exact, norm="spectral")
    loss.backward()
    assert loss.item() < 1e-24
    assert exact.weight_hh_l0.grad.isfinite().all()
    with pytest.raises(ValueError, match="`norm` must be 'frobenius' or 'spectral', got 2"):
        rnnkern.nn.orthogonal_penalty(exact, norm=2)


@pytest.mark.parametrize("value", [1.0, 0.958])
def test_moduli_of_a_schur_form_keep_their_value(value):
    module = nn.NonNormalRNN(I, 5, 2, gamma=value)
    moduli = torch.linalg.eigvals(module.weight_hh_l1.detach().double()).abs()
    torch.testing.assert_close(moduli, torch.full_like(moduli, value), rtol=0, atol=1e-5)
    optimiser = torch.optim.Adam(rnnkern.optim.param_groups(module, 0.1, triangular_weight_decay=0.1))
    for _ in range(3):
        optimiser.zero_grad()
        module(torch.randn(T, B, I))[0].square().sum().backward()
        optimiser.step()
    for k in range(2):
        _, theta, gamma, _ = module.parametrizations[f"weight_hh_l{k}"][0].originals
        assert (gamma == torch.tensor(value)).all()
        assert theta.grad.any()
    module.reset_parameters()
    assert (module.parametrizations.weight_hh_l0[0].originals[2] == torch.tensor(value)).all()
    module.weight_hh_l0 = torch.randn(5, 5)
    assert (module.parametrizations.weight_hh_l0[0].originals[2] == torch.tensor(value)).all()


@pytest.mark.parametrize("cls", [rnnkern.nn.LSTM, torch.nn.GRU, nn.RNN])
def test_glorots_normal_distribution_of_each_gate(cls):
    module = rnnkern.nn.init.glorot_normal_(cls(60, 100, 2))
    gates = len(module.weight_hh_l0) // 100
    for name, columns in (("weight_ih_l0", 60), ("weight_hh_l0", 100), ("weight_ih_l1", 100)):
        for gate in getattr(module, name).detach().chunk(gates):
            std, error = (2 / (100 + columns)) ** 0.5, 6 / gate.numel() ** 0.5  # six standard errors
            assert gate.std().item() == pytest.approx(std, rel=error / 2**0.5)
            assert abs(gate.mean().item()) < error * std
    assert not module.bias_hh_l1.any()
    with pytest.raises(ValueError, match="`module` must be an LSTM, GRU or RNN, got Linear"):
        rnnkern.nn.init.glorot_normal_(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="`weight_hh_l0` is parametrized"):
        rnnkern.nn.init.glorot_normal_(nn.ExpRNN(2, 3))


def test_a_gated_weight_may_be_assigned():
    cell = parametrizations.orthogonal_gate(torch.nn.GRUCell(2, 3, dtype=F64), "weight_hh")
    Q, _ = torch.linalg.qr(torch.randn(3, 3, dtype=F64))
    weight = torch.cat([torch.randn(6, 3, dtype=F64), Q])
    cell.weight_hh = weight
    torch.testing.assert_close(cell.weight_hh, weight)
    with pytest.raises(ValueError, match=r"the weight must be \(9, 3\), got \(3, 3\)"):
        cell.weight_hh = Q
    with pytest.raises(ValueError, match="the weight must be orthogonal"):
        cell.weight_hh = weight.flip(0)
    parametrizations.reset_parameters(cell, "weight_hh")
    assert not torch.equal(cell.weight_hh, weight)


def test_wrong_gates():
    with pytest.raises(ValueError, match=r"`weight_hh` must be \(..., 4\*N, N\), got \(9, 3\)"):
        parametrizations.orthogonal_gate(torch.nn.GRUCell(2, 3), "weight_hh", gates=4)
    with pytest.raises(ValueError, match="`gates` must be a positive integer, got 0"):
        parametrizations.orthogonal_gate(torch.nn.GRUCell(2, 3), "weight_hh", gates=0)
