"""Parameter groups, over the table of parametrizations and of models, and the optimizer for unitary matrices."""

import copy

import pytest
import torch

import rnnkern
from python_tests.samples.parametrizations import ROWS, from_unitary, originals, registered
from python_tests.tiers import quick_where
from rnnkern.nn import ExpRNN, NonNormalRNN
from rnnkern.optim import CayleySGD, param_groups
from rnnkern.parametrizations import _steps

ROTATING = {
    "orthogonal": [0],
    "orthogonal_gate": [0],
    "schur": [0],
    "spectral_margin": [0, 1],
    "unitary": [0, 1, 2],
}
"""Indices of the parameters that rotate a matrix, as far as there are so many; of `stable`, the first of two."""


@pytest.mark.parametrize("name", ROWS)
def test_parameters_that_rotate_a_matrix_have_their_own_rate_and_no_decay(name):
    module = registered(name)
    leaves = originals(module)
    wanted = ROTATING.get(ROWS[name].function, [0] if len(leaves) == 2 else [])[: len(leaves)]
    groups = {group["lr"]: group for group in param_groups(module, 1e-3, weight_decay=0.1)}
    turned = groups.get(1e-4, {"params": [], "weight_decay": 0.0})
    assert [id(p) for p in turned["params"]] == [id(leaves[k]) for k in wanted]
    assert turned["weight_decay"] == 0


def models():
    model = torch.nn.ModuleDict({"a": ExpRNN(2, 4), "b": NonNormalRNN(4, 4), "c": torch.nn.Linear(4, 4)})
    model["again"] = model["c"]
    return model


WEIGHT = "parametrizations.weight_hh_l0.original"


def test_every_parameter_stands_in_one_group():
    model = models()
    others, skew, strict = param_groups(model, 1e-3, weight_decay=0.1, triangular_weight_decay=1e-4)
    names = {id(p): name for name, p in model.named_parameters()}
    assert sorted(names[id(p)] for p in skew["params"]) == [f"a.{WEIGHT}", f"b.{WEIGHT}0"]
    assert [names[id(p)] for p in strict["params"]] == [f"b.{WEIGHT}3"]
    assert sorted(id(p) for group in (others, skew, strict) for p in group["params"]) == sorted(names)
    rates = [(group["lr"], group["weight_decay"]) for group in (others, skew, strict)]
    assert rates == [(1e-3, 0.1), (1e-4, 0.0), (1e-3, 1e-4)]


def test_rates_are_as_given_and_empty_groups_left_out():
    assert [group["lr"] for group in param_groups(ExpRNN(2, 4), 1e-3, 1e-6)] == [1e-3, 1e-6]
    assert [group["lr"] for group in param_groups(ExpRNN(2, 4), 1e-3, 0.0)] == [1e-3, 0.0]
    assert len(param_groups(torch.nn.Linear(2, 2), 1e-3)) == 1


@pytest.mark.parametrize("triangular", [None, 0.75])
@pytest.mark.parametrize("given", [None, 0.0, 0.3])
def test_the_optimisers_own_weight_decay_reaches_all_but_the_constrained(given, triangular):
    model = models()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1)
            p.grad = torch.zeros_like(p)
    groups = param_groups(model, 1.0, 1.0, weight_decay=given, triangular_weight_decay=triangular)
    torch.optim.SGD(groups, weight_decay=0.25).step()
    decay = 0.25 if given is None else given
    decays = {f"a.{WEIGHT}": 0, f"b.{WEIGHT}0": 0, f"b.{WEIGHT}3": decay if triangular is None else triangular}
    for name, p in model.named_parameters():
        assert torch.equal(p, torch.full_like(p, 1 - decays.get(name, decay))), name


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr(_steps, "_warned", False)


def train(model, optimiser, updates=2):
    for _ in range(updates):
        model(torch.randn(3, 2, 2))[0].sum().backward()
        optimiser.step()


def test_constrained_parameters_at_the_plain_rate_are_warned_of_once(unwarned):
    rnn = ExpRNN(2, 4)
    with pytest.warns(UserWarning, match=r"Adam: parameters behind orthogonal .* pass rnnkern\.optim\.param_groups"):
        train(rnn, torch.optim.Adam(rnn.parameters()))
    train(ExpRNN(2, 4), torch.optim.Adam(rnn.parameters()))  # warnings are errors here


def test_copies_are_warned_of_too(unwarned):
    rnn = copy.deepcopy(ExpRNN(2, 4))
    with pytest.warns(UserWarning, match="SGD: parameters behind orthogonal weights train at the learning rate of all"):
        train(rnn, torch.optim.SGD(rnn.parameters(), 0.1))


def test_no_warning_where_the_rate_is_a_choice(unwarned):
    rnn, linear = ExpRNN(2, 4), torch.nn.RNN(2, 4)
    train(rnn, torch.optim.Adam(param_groups(rnn, 1e-3)))
    train(linear, torch.optim.Adam(linear.parameters()))
    names = ("parametrizations" in name for name, _ in rnn.named_parameters())
    own = [p for p, mine in zip(rnn.parameters(), names, strict=True) if mine]
    train(rnn, torch.optim.Adam(own))
    lbfgs = torch.optim.LBFGS(rnn.parameters())  # supports one group alone
    lbfgs.step(lambda: rnn(torch.zeros(2, 1, 2))[0].sum())


def test_wrong_arguments():
    with pytest.raises(TypeError, match=r"`model` must be a torch\.nn\.Module, got list"):
        param_groups([], 1e-3)
    for name in ("lr", "orthogonal_lr", "weight_decay", "triangular_weight_decay"):
        with pytest.raises(ValueError, match=f"`{name}` must not be negative, got -1"):
            param_groups(rnnkern.nn.ExpRNN(2, 4), **{"lr": 1.0, "orthogonal_lr": 1.0, name: -1})


# ---- CayleySGD


dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)


def random_unitary(*shape, dtype):
    return torch.nn.Parameter(torch.linalg.qr(torch.randn(shape, dtype=dtype))[0])


@dtypes
def test_a_cayley_step_is_that_of_the_paper_and_descends(dtype):
    W = random_unitary(2, 5, 5, dtype=dtype)
    target = random_unitary(2, 5, 5, dtype=dtype).detach()
    optimiser, begun = CayleySGD([W], 0.05), W.detach().clone()

    def closure():
        optimiser.zero_grad()
        loss = (W - target).abs().square().sum()
        loss.backward()
        return loss

    before = optimiser.step(closure)
    A = W.grad @ begun.mH - begun @ W.grad.mH
    eye = torch.eye(5, dtype=dtype)
    torch.testing.assert_close(W.detach(), torch.linalg.solve(eye + 0.025 * A, (eye - 0.025 * A) @ begun))
    assert closure() < before
    assert from_unitary(W) < 1e-14


@dtypes
def test_cayley_steps_divided_as_rmsprop_divides(dtype):
    W = random_unitary(2, 5, 5, dtype=dtype)
    optimiser, average = CayleySGD([W], 0.05, alpha=0.9, eps=1e-3), torch.zeros(2, 5, 5, dtype=torch.float64)
    eye = torch.eye(5, dtype=dtype)
    for _ in range(3):
        begun, W.grad = W.detach().clone(), torch.randn_like(W)
        A = W.grad @ begun.mH - begun @ W.grad.mH
        average = 0.9 * average + 0.1 * A.abs() ** 2
        A = A / (average.sqrt() + 1e-3)
        optimiser.step()
        torch.testing.assert_close(W.detach(), torch.linalg.solve(eye + 0.025 * A, (eye - 0.025 * A) @ begun))
    assert from_unitary(W) < 1e-14


@pytest.mark.parametrize("alpha", quick_where(lambda alpha: alpha is None, [None, 0.99]))
def test_10_000_cayley_steps_do_not_drift(alpha):
    dtype = torch.complex64
    W = random_unitary(8, 8, dtype=dtype)
    optimiser, generator = CayleySGD([W], 0.01, alpha), torch.Generator().manual_seed(0)
    for _ in range(10_000):
        W.grad = torch.randn(8, 8, dtype=dtype, generator=generator)
        optimiser.step()
    assert from_unitary(W) < 4e-6
    assert optimiser.state[W]["step"] == 10_000
    again = CayleySGD([W], 0.5)
    again.load_state_dict(optimiser.state_dict())
    assert (again.state[W]["step"], again.param_groups[0]["lr"]) == (10_000, 0.01)


def test_wrong_parameters_of_cayley_steps():
    with pytest.raises(ValueError, match="`lr` must not be negative, got -1"):
        CayleySGD([torch.zeros(2, 2, requires_grad=True)], -1)
    with pytest.raises(ValueError, match=r"`alpha` must be in \[0, 1\) or None, got 1.0"):
        CayleySGD([torch.zeros(2, 2, requires_grad=True)], 0.1, alpha=1.0)
    with pytest.raises(ValueError, match=r"parameters must be \(..., N, N\), got \(2, 3\)"):
        CayleySGD([torch.zeros(2, 3, requires_grad=True)], 0.1)
    with pytest.raises(TypeError, match="real or complex with 32 or 64 bits, got "):
        CayleySGD([torch.zeros(2, 2, dtype=torch.float16, requires_grad=True)], 0.1)
