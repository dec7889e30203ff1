"""Weights in real Schur form."""

import copy

import pytest
import torch

import rnnkern
from rnnkern import reference
from rnnkern.parametrizations import schur
from rnnkern.parametrizations._schur import schur_form

F64 = torch.float64
SIZES = [1, 2, 3, 8, 33]


def made(size=6, dtype=F64, **options):
    return schur(torch.nn.Linear(size, size, bias=False, dtype=dtype), "weight", **options)


def originals(module):
    return module.parametrizations.weight[0].originals


@torch.no_grad()
def moved(module):
    for p in originals(module):
        p.add_(0.3 * torch.randn(p.shape, dtype=p.dtype))
    return module


@pytest.mark.parametrize("size", SIZES)
def test_begins_as_an_orthogonal_matrix_with_angles_drawn(size):
    module = made(size)
    A, theta, gamma, T = originals(module)
    assert (theta.shape, gamma.shape) == ((size // 2,), ((size + 1) // 2,))
    assert not A.any()
    assert not T.any()
    assert (gamma == 1).all()
    V = module.weight
    torch.testing.assert_close(V.T @ V, torch.eye(size, dtype=F64))
    if size == 33:
        assert 0 <= theta.min() < 1.5
        assert 5 < theta.max() <= 6.2832


@pytest.mark.parametrize("moving", [False, True])
def test_value_and_gradients_are_the_formula_s(moving):
    module = made(7)
    if moving:
        moved(module)
    A, theta, gamma, T = parameters = originals(module)
    P = module.parametrizations.weight[0].base @ reference.skew_exp(A)
    wanted = reference.schur_weight(P, theta, gamma, T)
    torch.testing.assert_close(module.weight, wanted)
    G = torch.randn(7, 7, dtype=F64)
    found, wanted = (torch.autograd.grad((G * V).sum(), parameters) for V in (module.weight, wanted))
    torch.testing.assert_close(found, wanted)


def rotation(size):
    return rnnkern.parametrizations.orthogonal_matrix(torch.empty(size, size, dtype=F64), "haar")


MATRICES = {
    "gaussian": lambda n: torch.randn(n, n, dtype=F64),
    "orthogonal": rotation,
    "reflection": lambda n: rotation(n) * torch.tensor([-1.0] + [1.0] * (n - 1), dtype=F64),
    "symmetric": lambda n: (lambda x: x + x.T)(torch.randn(n, n, dtype=F64)),
    "identity": lambda n: torch.eye(n, dtype=F64),
    "zero": lambda n: torch.zeros(n, n, dtype=F64),
    "jordan": lambda n: torch.eye(n, dtype=F64) + torch.ones(n, n, dtype=F64).triu(1).tril(1),
    "diagonal": lambda n: torch.arange(n, dtype=F64).diag(),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_a_matrix_may_be_assigned(matrix, size):
    V = matrix(size)
    module = moved(made(size))
    module.weight = V
    torch.testing.assert_close(module.weight, V, rtol=0, atol=1e-12 * size * max(1, V.abs().max().item()))
    single = made(size, torch.float32)
    single.weight = V.float()
    torch.testing.assert_close(single.weight, V.float(), rtol=0, atol=1e-6 * size * max(1, V.abs().max().item()))


def test_a_rotation_s_form_has_no_triangle_and_its_angles():
    V = rotation(8)
    _, theta, gamma, T = schur_form(V)
    torch.testing.assert_close(gamma, torch.ones(4, dtype=F64))
    torch.testing.assert_close(T.abs().max(), torch.zeros((), dtype=F64), atol=1e-12, rtol=0)
    angles = torch.linalg.eigvals(V).angle()
    torch.testing.assert_close(theta.abs().sort().values, angles[angles > 0].sort().values)


def test_what_has_no_form_is_refused(monkeypatch):
    module = made(5)
    before = module.weight.detach().clone()
    with pytest.raises(ValueError, match=r"schur: the weight must be \(5, 5\), got \(4, 4\)"):
        module.weight = torch.eye(4, dtype=F64)
    with pytest.raises(ValueError, match="schur: the weight must be finite"):
        module.weight = torch.full((5, 5), torch.nan, dtype=F64)
    eig = torch.linalg.eig
    monkeypatch.setattr(torch.linalg, "eig", lambda V: (eig(V)[0], torch.randn(5, 5, dtype=torch.complex128)))
    with pytest.raises(ValueError, match="schur: eigenvectors must be independent; the Schur form is off by"):
        module.weight = torch.randn(5, 5, dtype=F64)
    assert torch.equal(module.weight, before)


def test_heads_are_a_batch():
    rnn = rnnkern.nn.RNN(3, 6, num_heads=2, dtype=F64)
    schur(rnn, "weight_hh_l0", init="haar")
    V = torch.randn(2, 3, 3, dtype=F64)
    rnn.weight_hh_l0 = V
    torch.testing.assert_close(rnn.weight_hh_l0, V)
    rnn(torch.randn(4, 2, 3, dtype=F64))[0].sum().backward()


@pytest.mark.parametrize("base", ["static", "dynamic"])
def test_a_checkpoint_resumes_to_the_same_bits(base):
    def step(module, optimiser):
        optimiser.zero_grad()
        module.weight.sin().sum().backward()
        optimiser.step()

    module = made(dtype=torch.float32, base=base, rebase_every=2)
    optimiser = torch.optim.RMSprop(rnnkern.optim.param_groups(module, 0.01, triangular_weight_decay=1e-3))
    for _ in range(3):
        step(module, optimiser)
    again = made(dtype=torch.float32, base=base, rebase_every=2)
    resumed = torch.optim.RMSprop(rnnkern.optim.param_groups(again, 0.01, triangular_weight_decay=1e-3))
    again.load_state_dict(copy.deepcopy(module.state_dict()))
    resumed.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    for _ in range(5):
        step(module, optimiser)
        step(again, resumed)
    assert torch.equal(again.weight, module.weight)
    assert (not originals(module)[0].any()) == (base == "dynamic")
