"""Orthogonal networks against loops over their equations, and as modules."""

import copy
import pickle

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import rnnkern
from python_tests.samples import draws, numbered
from rnnkern import reference
from rnnkern.nn import EURNN, RNN, CayleyRNN, ExpRNN, HouseholderRNN, NonNormalRNN, OrthogonalInitRNN, SpectralRNN
from rnnkern.testing import assert_close_over_draws

T, B, I, H = 6, 3, 2, 5  # noqa: E741
F64 = torch.float64
CONSTRAINED = [ExpRNN, CayleyRNN, NonNormalRNN]
MODULES = [*CONSTRAINED, HouseholderRNN, EURNN, SpectralRNN, OrthogonalInitRNN]
modules = pytest.mark.parametrize("cls", MODULES, ids=lambda cls: cls.__name__)
constrained = pytest.mark.parametrize("cls", CONSTRAINED, ids=lambda cls: cls.__name__)


@torch.no_grad()
def made(cls, *args, dtype=F64, by=0.2, **options):
    """A module whose A, T and moduli differ from their initial values."""
    module = cls(*(args or (I, H)), dtype=dtype, **options)
    for name, p in module.named_parameters():
        if "original" in name:
            p.add_(by * torch.randn(p.shape))
    return module


def recurrent_weight(module, suffix):
    """The recurrent weight, computed from the parameters by the reference."""
    name = f"weight_hh_{suffix}"
    if isinstance(module, OrthogonalInitRNN):
        return getattr(module, name)
    parametrized = module.parametrizations[name]
    if isinstance(module, SpectralRNN):
        A, C, p = (getattr(parametrized, f"original{k}") for k in range(3))
        U, V = (b @ reference.skew_exp(x) for b, x in ((parametrized[0].base_u, A), (parametrized[0].base_v, C)))
        return U @ torch.diag(1 + 2 * 0.1 * (torch.sigmoid(p) - 0.5)) @ V.T
    if isinstance(module, EURNN):
        return reference.givens_product(parametrized.original, size=module.hidden_size)
    if isinstance(module, HouseholderRNN):
        return reference.householder_product(parametrized.original)
    B = parametrized[0].base
    if isinstance(module, NonNormalRNN):
        A, theta, gamma, T_ = (getattr(parametrized, f"original{k}") for k in range(4))
        return reference.schur_weight(B @ reference.skew_exp(A), theta, gamma, T_)
    A = parametrized.original
    if isinstance(module, CayleyRNN):
        return B @ reference.cayley(A, parametrized[0].scale)
    return B @ reference.skew_exp(A)


def loop(module, x, h0=None, reset=None, lengths=None):
    """h_t = modrelu(W x_t + R h_{t-1}; b), by layer, direction and step; input (T, B, I)."""
    directions = 2 if module.bidirectional else 1
    finals, lengths = [], lengths or [x.shape[0]] * x.shape[1]
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"l{layer}{'_reverse' * direction}"
            W, b = (getattr(module, f"{name}_{suffix}") for name in ("weight_ih", "modrelu_bias"))
            R = recurrent_weight(module, suffix)
            rows = torch.zeros(x.shape[0], x.shape[1], module.hidden_size, dtype=x.dtype)
            rows, last = list(rows.unbind(1)), []
            for n, length in enumerate(lengths):
                h = (
                    torch.zeros(module.hidden_size, dtype=x.dtype)
                    if h0 is None
                    else h0[layer * directions + direction, n]
                )
                steps, found = range(length), {}
                for t in reversed(steps) if direction else steps:
                    begins = t + 1 if direction else t
                    if reset is not None and begins < length and reset[begins, n]:
                        h = torch.zeros_like(h)
                    z = W @ x[t, n] + R @ h
                    h = found[t] = z.sign() * (z.abs() + b).relu()
                last.append(h)
                pad = torch.zeros_like(h)
                rows[n] = torch.stack([found.get(t, pad) for t in range(x.shape[0])])
            outputs.append(torch.stack(rows, 1))
            finals.append(torch.stack(last))
        x = torch.cat(outputs, -1)
    return x, torch.stack(finals)


def gradients(module, output, h_n):
    loss = output.sin().sum() + h_n.cos().sum()
    return dict(zip(dict(module.named_parameters()), torch.autograd.grad(loss, module.parameters()), strict=True))


@pytest.mark.parametrize("flags", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}], ids=str)
@pytest.mark.parametrize("kind", ["plain", "state", "reset", "packed", "unbatched"])
@modules
def test_the_loop(cls, kind, flags):
    module = made(cls, **flags)
    x = torch.randn(T, B, I, dtype=F64)
    rows = module.num_layers * (2 if module.bidirectional else 1)
    h0 = torch.randn(rows, B, H, dtype=F64) if kind != "plain" else None
    reset = torch.rand(T, B) < 0.4 if kind == "reset" else None
    lengths = [4, 6, 1] if kind == "packed" else None
    wanted, h_n = loop(module, x, h0, reset, lengths)
    given = x.transpose(0, 1) if module.batch_first else x
    if kind == "packed":
        given = pack_padded_sequence(given, lengths, module.batch_first, enforce_sorted=False)
        output, found = module(given, h0)
        assert isinstance(output, PackedSequence)
        output, _ = pad_packed_sequence(output)
    elif kind == "unbatched":
        output, found = module(x[:, 1], h0[:, 1])
        wanted, h_n = wanted[:, 1], h_n[:, 1]
    else:
        masked = None if reset is None else reset.transpose(0, 1) if module.batch_first else reset
        output, found = module(given, h0, reset=masked)
        output = output.transpose(0, 1) if module.batch_first else output
    torch.testing.assert_close([output, found], [wanted, h_n])
    torch.testing.assert_close(gradients(module, output, found), gradients(module, wanted, h_n))


@modules
def test_gradients_in_float32_against_float64(cls):
    """Gradients of A, theta, gamma, T and all other parameters, compared with assert_close."""

    def compared():
        module = made(cls, 8, 40, dtype=torch.float32, by=0.01)  # small T and gamma: the state must not explode
        exact = copy.deepcopy(module).double()
        x = torch.randn(20, 4, 8)
        actual, naive = gradients(module, *module(x)), gradients(module, *loop(module, x))
        truth = gradients(exact, *loop(exact, x.double()))
        return {name: (actual[name], naive[name], truth[name]) for name in truth}

    assert_close_over_draws(draws(compared))


@constrained
def test_orthogonal_as_trained(cls):
    module = cls(I, 16, base="dynamic", rebase_every=5)
    head = torch.nn.Linear(16, 1)
    model = torch.nn.ModuleList([module, head])
    optimiser = torch.optim.RMSprop(rnnkern.optim.param_groups(model, 1e-3))
    x = torch.randn(T, B, I)
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = (head(module(x)[0][-1]) - x[0, :, :1]).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    parametrization = module.parametrizations.weight_hh_l0[0]
    assert parametrization.steps == 40
    V = parametrization.base if cls is NonNormalRNN else module.weight_hh_l0
    assert (V.T @ V - torch.eye(16)).abs().max() < 2e-6


@modules
def test_what_is_drawn(cls):
    torch.manual_seed(0)
    module = cls(30, 50, bidirectional=True)
    torch.manual_seed(0)
    again = cls(30, 50, bidirectional=True)
    for name, value in module.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    before = {name: x.clone() for name, x in module.state_dict().items()}
    module.reset_parameters()
    for suffix in ("l0", "l0_reverse"):
        for drawn in (before, module.state_dict()):
            assert drawn[f"weight_ih_{suffix}"].std() == pytest.approx((2 / 80) ** 0.5, rel=0.1)
            bias = drawn[f"modrelu_bias_{suffix}"]
            assert 0.005 < bias.abs().max() < 0.01
        assert not torch.equal(module.state_dict()[f"weight_ih_{suffix}"], before[f"weight_ih_{suffix}"])
        V = getattr(module, f"weight_hh_{suffix}")
        assert (V.T @ V - torch.eye(50)).abs().max() < 2e-6
        assert not torch.equal(V, getattr(again, f"weight_hh_{suffix}"))
    assert not hasattr(module, "bias_ih_l0")


@modules
def test_on_the_meta_device(cls):
    module = cls(I, H, device="meta")
    assert (module.weight_hh_l0.shape, module.weight_hh_l0.device.type) == ((H, H), "meta")
    module.to_empty(device="cpu").reset_parameters()
    module(torch.zeros(T, B, I))
    module.load_state_dict(cls(I, H).state_dict())


def test_irnn():
    module = OrthogonalInitRNN(I, 4, init="identity", nonlinearity="relu", num_layers=2)
    assert torch.equal(module.weight_hh_l1, torch.eye(4))
    assert module.nonlinearity == "relu"
    heads = OrthogonalInitRNN(I, 4, init="henaff", num_heads=2).weight_hh_l0
    torch.testing.assert_close(heads.mT @ heads, torch.eye(2).expand(2, 2, 2))


@modules
def test_options_reach_the_layer_and_its_weight(cls):
    module = cls(I, 4, 2, bias=True, zoneout=0.1, num_heads=2, dropout=0.5, nonlinearity="tanh", init="identity")
    assert (module.zoneout, module.num_heads, module.dropout) == (0.1, 2, 0.5)
    assert module.bias_hh_l1.shape == (4,)
    if cls is not NonNormalRNN:
        assert torch.equal(module.weight_hh_l1.abs(), torch.eye(2).expand(2, 2, 2))
    module(torch.randn(T, B, I))[0].sum().backward()


@constrained
def test_the_base_of_each_layer_moves(cls):
    module = cls(I, H, 2, base="dynamic", rebase_every=7)
    assert [p[0].rebase_every for p in module.parametrizations.values()] == [7, 7]
    assert all(p[0].dynamic for p in module.parametrizations.values())


@modules
def test_wrong_arguments(cls):
    with pytest.raises(ValueError, match=r"`init` must be one of .*, got 'zeros'"):
        cls(I, H, init="zeros")
    with pytest.raises(TypeError, match="unknown argument `unknown`"):
        cls(I, H, unknown=1)
    with pytest.raises(ValueError, match="Unknown nonlinearity"):
        cls(I, H, nonlinearity="cube")


@modules
def test_replace_and_restore_leave_them(cls):
    model = torch.nn.Sequential(cls(I, H))
    before = type(model[0])
    for swap in (rnnkern.replace, rnnkern.restore):
        report = swap(model)
        assert report.replaced == ()
        assert type(model[0]) is before
    assert report.left[0].cls is cls


def test_replace_keeps_an_orthogonal_weight():
    theirs = torch.nn.RNN(I, H, dtype=F64)
    rnnkern.parametrizations.orthogonal(theirs, "weight_hh_l0", base="dynamic")
    x = torch.randn(T, B, I, dtype=F64)
    wanted = theirs(x)
    for swap in (rnnkern.replace, rnnkern.restore):
        assert len(swap(theirs).replaced) == 1
        torch.testing.assert_close(theirs(x), wanted)
        torch.testing.assert_close(pickle.loads(pickle.dumps(theirs))(x), wanted)
        torch.testing.assert_close(copy.copy(theirs)(x), wanted)


@modules
def test_bfloat16_autocast_and_evaluation(cls):
    module = cls(I, 16)
    x = torch.randn(T, B, I)

    def compared():
        x = torch.randn(T, B, I)
        with torch.autocast("cpu", torch.bfloat16):
            output, _ = module(x)
            with rnnkern.use("reference"):
                naive, _ = module(x)
        output.sum().backward()
        assert output.dtype == torch.bfloat16
        return numbered([output], [naive], [copy.deepcopy(module).double()(x.double())[0]])

    assert_close_over_draws(draws(compared))
    with torch.inference_mode():
        whole = module(x)[0]
        h = None
        for t in range(T):
            _, h = module(x[t : t + 1], h)
    torch.testing.assert_close(whole[-1], h[0])


def test_they_are_elman_networks():
    for cls in MODULES:
        module = cls(I, H)
        assert isinstance(module, (RNN, torch.nn.RNN))
        assert [choice.implementation for choice in rnnkern.ops.explain(module, torch.zeros(T, B, I))]


def test_reflections_reach_the_weight():
    module = HouseholderRNN(I, 6, 2, reflections=3)
    assert [V.shape for V in (p.original for p in module.parametrizations.values())] == [(6, 3), (6, 3)]
    assert round(torch.linalg.det(module.weight_hh_l1).item()) == -1
    assert HouseholderRNN(I, 6, num_heads=2).parametrizations.weight_hh_l0.original.shape == (2, 3, 3)
    with pytest.raises(ValueError, match="`reflections` must be an integer from 1 to N = 6, got 7"):
        HouseholderRNN(I, 6, reflections=7)


def test_layers_of_rotations_reach_the_weight():
    module = EURNN(I, 8, 2, rotation_layers=2, style="butterfly")
    assert [angles.original.shape for angles in module.parametrizations.values()] == [(2, 4), (2, 4)]
    wanted = reference.givens_product(module.parametrizations.weight_hh_l1.original, style="butterfly")
    torch.testing.assert_close(module.weight_hh_l1, wanted)
    assert EURNN(I, 8).parametrizations.weight_hh_l0.original.shape == (8, 4)
    assert EURNN(I, 6, num_heads=2).parametrizations.weight_hh_l0.original.shape == (2, 3, 1)
    with pytest.raises(ValueError, match="N must be a power of two for the style 'butterfly', got 6"):
        EURNN(I, 6, style="butterfly")


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (HouseholderRNN, {"reflections": 5}),
        (EURNN, {"rotation_layers": 4}),
        (EURNN, {"style": "butterfly"}),
        (SpectralRNN, {"margin": 0}),
    ],
)
def test_factors_train(cls, options):
    module = cls(I, 16, **options)
    head = torch.nn.Linear(16, 1)
    optimiser = torch.optim.RMSprop(rnnkern.optim.param_groups(torch.nn.ModuleList([module, head]), 1e-3))
    x = torch.randn(T, B, I)
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = (head(module(x)[0][-1]) - x[0, :, :1]).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    V = module.weight_hh_l0
    assert (V.T @ V - torch.eye(16)).abs().max() < 2e-6


def test_schur_penalty():
    model = torch.nn.ModuleList([made(NonNormalRNN, num_layers=2), torch.nn.Linear(2, 2)])
    gammas = [p.original2 for p in model[0].parametrizations.values()]
    wanted = sum(((1 - gamma) ** 2).sum() for gamma in gammas)
    penalty = rnnkern.nn.schur_penalty(model)
    torch.testing.assert_close(penalty, wanted)
    torch.testing.assert_close(torch.autograd.grad(penalty, gammas), tuple(2 * (gamma - 1) for gamma in gammas))
    with pytest.raises(ValueError, match="`model` must contain a weight in Schur form"):
        rnnkern.nn.schur_penalty(ExpRNN(2, 3))


def test_singular_values_stay_within_the_margin():
    module = SpectralRNN(I, 16, margin=0.05)
    optimiser = torch.optim.RMSprop(rnnkern.optim.param_groups(module, 0.1))
    x = torch.randn(T, B, I)
    for _ in range(40):
        optimiser.zero_grad()
        (-module(x)[0].square().sum()).backward()
        optimiser.step()
    s = torch.linalg.svdvals(module.weight_hh_l0.detach())
    assert s.max() > 1.04
    assert ((s > 0.95 - 1e-6) & (s < 1.05 + 1e-6)).all()
    with pytest.raises(ValueError, match=r"`margin` must be a number from 0 to 1, got 1\.5"):
        SpectralRNN(I, 16, margin=1.5)


def test_orthogonal_penalty():
    layers = [
        RNN(I, 4, 2, bidirectional=True, dtype=F64),
        torch.nn.RNN(2, 3, dtype=F64),
        RNN(I, 4, num_heads=2, dtype=F64),
    ]
    model = torch.nn.ModuleList([*layers, torch.nn.Linear(2, 2), rnnkern.nn.LSTM(2, 3)])
    weights = [p for layer in layers for name, p in layer.named_parameters() if name.startswith("weight_hh")]
    assert len(weights) == 6
    grams = [V.mT @ V - torch.eye(V.shape[-1], dtype=F64) for V in weights]
    penalty = rnnkern.nn.orthogonal_penalty(model)
    torch.testing.assert_close(penalty, sum((G**2).sum() for G in grams))
    found = torch.autograd.grad(penalty, weights)
    torch.testing.assert_close(found, tuple(4 * V @ G for V, G in zip(weights, grams, strict=True)))
    optimiser = torch.optim.SGD(weights, 0.05)
    for _ in range(200):
        optimiser.zero_grad()
        rnnkern.nn.orthogonal_penalty(model).backward()
        optimiser.step()
    assert rnnkern.nn.orthogonal_penalty(model) < 1e-6
    with pytest.raises(ValueError, match="orthogonal_penalty: `model` must contain an Elman network"):
        rnnkern.nn.orthogonal_penalty(rnnkern.nn.LSTM(2, 3))


def test_the_spectral_penalty_is_of_the_singular_value_furthest_from_one():
    layers = [RNN(I, 4, dtype=F64), RNN(I, 4, num_heads=2, dtype=F64)]
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
    module = NonNormalRNN(I, 5, 2, gamma=value)
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
    for wrong, error in ((-1.0, ValueError), (float("inf"), ValueError), ("1", TypeError)):
        with pytest.raises(error, match="schur: `gamma` must be"):
            NonNormalRNN(I, 5, gamma=wrong)


@pytest.mark.parametrize("cls", [rnnkern.nn.LSTM, torch.nn.GRU, RNN])
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
        rnnkern.nn.init.glorot_normal_(ExpRNN(2, 3))
