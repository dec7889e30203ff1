"""Orthogonal weights: initial values, maps, checkpoints, assignments and errors."""

import copy
import itertools
import math

import pytest
import torch

import rnnkern
from python_tests.parametrizations.square import F64, distance, made, moved, parts
from rnnkern.parametrizations import INITS, orthogonal, orthogonal_matrix
from rnnkern.parametrizations._orthogonal import BASES, MAPS

# ---- initial values


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize(("init", "orthogonal_map"), [*itertools.product(INITS, MAPS)])
def test_initial_matrices_are_rotations(init, orthogonal_map, size):
    V = orthogonal_matrix(torch.empty(3, size, size, dtype=F64), init, orthogonal_map)
    assert distance(V) < 1e-14
    torch.testing.assert_close(torch.linalg.det(V), torch.ones(3, dtype=F64))
    if init != "identity" and size > 1:
        assert not torch.equal(V[0], V[1])


def test_henaff_and_cayley_are_what_the_map_makes_of_skew_blocks():
    for init, low, high in (("henaff", -math.pi, math.pi), ("cayley", 0, 1)):
        A = torch.zeros(7, 7, dtype=F64)
        torch.manual_seed(3)
        u = torch.rand(3, dtype=F64)
        t = u * math.pi / 2
        s = math.pi * (2 * u - 1) if init == "henaff" else torch.sqrt((1 - t.cos()) / (1 + t.cos()))
        assert ((low <= s) & (s <= high)).all()
        for k in range(3):
            A[2 * k + 1, 2 * k] = -s[k]  # blocks (0, s; -s, 0)
        for orthogonal_map, formula in (("exp", rnnkern.reference.skew_exp), ("cayley", rnnkern.reference.cayley)):
            torch.manual_seed(3)
            V = orthogonal_matrix(A, init, orthogonal_map)
            torch.testing.assert_close(V, formula(A))


def test_haar_is_uniform():
    """The trace of a random rotation has mean 0 and variance 1 (Diaconis and Shahshahani 1994), also after
    multiplication by a fixed rotation."""
    V = orthogonal_matrix(torch.empty(4000, 5, 5), "haar").double()
    turn = orthogonal_matrix(torch.empty(5, 5, dtype=F64), "haar")
    for sample in (V, V @ turn):
        trace = sample.diagonal(dim1=-2, dim2=-1).sum(-1)
        assert abs(trace.mean()) < 0.1
        assert abs(trace.var() - 1) < 0.14


# ---- value and gradient


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("orthogonal_map", MAPS)
def test_value_and_gradient_are_the_formula_s(orthogonal_map, zero):
    module = made(orthogonal_map=orthogonal_map, init="haar")
    parametrization, A = parts(module)
    if not zero:
        moved(module)
    B, S = parametrization.base, rnnkern.reference.skew(A)
    eye = torch.eye(6, dtype=F64)
    wanted = B @ rnnkern.reference.skew_exp(A) if orthogonal_map == "exp" else B @ torch.linalg.solve(eye + S, eye - S)
    if orthogonal_map == "scaled_cayley":
        wanted = wanted * torch.tensor([-1.0] * 3 + [1.0] * 3, dtype=F64)
    torch.testing.assert_close(module.weight, wanted)
    G = torch.randn(6, 6, dtype=F64)
    gradients = [torch.autograd.grad((G * W).sum(), A)[0] for W in (module.weight, wanted)]
    torch.testing.assert_close(*gradients)
    assert torch.equal(gradients[0], gradients[0].tril(-1))


def test_at_zero_nothing_is_computed(monkeypatch):
    module = made(base="dynamic")
    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    counted = []
    exp = rnnkern.ops.skew_exp
    monkeypatch.setattr(rnnkern.ops, "skew_exp", lambda *args, **kwargs: counted.append(1) or exp(*args, **kwargs))
    for step in range(3):
        module.weight.square().sum().backward()
        assert len(counted) == step
        optimiser.step()  # computes B exp(A) once
    assert len(counted) == 3


@pytest.mark.parametrize(
    ("orthogonal_map", "num_negative", "wanted"),
    [("exp", None, 1), ("cayley", None, 1), ("scaled_cayley", None, -1), ("scaled_cayley", 2, 1)],
)
def test_determinants(orthogonal_map, num_negative, wanted):
    V = moved(made(orthogonal_map=orthogonal_map, num_negative=num_negative)).weight
    assert round(torch.linalg.det(V).item()) == wanted


def test_heads_are_a_batch():
    rnn = rnnkern.nn.RNN(3, 6, num_heads=2)
    orthogonal(rnn, "weight_hh_l0", init="haar")
    assert rnn.weight_hh_l0.shape == (2, 3, 3)
    assert distance(rnn.weight_hh_l0) < 1e-6
    rnn(torch.randn(4, 2, 3))[0].sum().backward()
    assert rnn.parametrizations.weight_hh_l0.original.grad.abs().sum() > 0


def test_a_buffer_may_be_parametrized():
    module = torch.nn.Module()
    module.register_buffer("V", torch.empty(4, 4))
    orthogonal(module, "V", init="haar")
    assert distance(module.V) < 1e-6
    assert list(module.parameters()) == []


def test_the_parameter_stays_the_same_object():
    linear = torch.nn.Linear(4, 4)
    weight = linear.weight
    assert parts(orthogonal(linear, "weight"))[1] is weight


# ---- checkpoints and assignments


def trained(module, optimiser, updates, generator):
    for _ in range(updates):
        optimiser.zero_grad()
        x = torch.randn(3, 6, generator=generator)
        module(x).sin().sum().backward()
        optimiser.step()


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("when", [5, 6])
@pytest.mark.parametrize("base", BASES)
def test_a_checkpoint_resumes_to_the_same_bits(base, when, assign):
    def begun():
        module = made(dtype=torch.float32, base=base, rebase_every=3, init="haar")
        return module, torch.optim.Adam(module.parameters(), 0.01)

    module, optimiser = begun()
    generator = torch.Generator().manual_seed(0)
    trained(module, optimiser, when, generator)
    kept = copy.deepcopy([module.state_dict(), optimiser.state_dict(), generator.get_state()])
    trained(module, optimiser, 7, generator)

    again, resumed = begun()
    again.load_state_dict(kept[0], assign=assign)
    if assign:
        resumed = torch.optim.Adam(again.parameters(), 0.01)
    resumed.load_state_dict(kept[1])
    generator.set_state(kept[2])
    trained(again, resumed, 7, generator)
    assert torch.equal(again.weight, module.weight)
    for name, value in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize("orthogonal_map", MAPS)
def test_an_orthogonal_matrix_may_be_assigned(orthogonal_map):
    module = moved(made(orthogonal_map=orthogonal_map, dtype=torch.float32))
    V = torch.linalg.qr(torch.randn(6, 6))[0]
    V[:, 0] *= -torch.linalg.det(V).sign()  # determinant -1, which no exponential has
    module.weight = V
    assert torch.equal(module.weight, V)
    assert not parts(module)[1].any()


@pytest.mark.parametrize("V", [torch.ones(6, 6), torch.full((6, 6), math.nan), torch.eye(6) * 1.01])
def test_what_is_not_orthogonal_is_refused(V):
    module = made()
    with pytest.raises(ValueError, match=r"orthogonal: the weight must be orthogonal, got max \|V\^T V - I\| ="):
        module.weight = V.double()


# ---- errors


@pytest.mark.parametrize(
    ("error", "options", "said"),
    [
        (
            ValueError,
            {"orthogonal_map": "log"},
            r"orthogonal: `orthogonal_map` must be one of \('exp', 'cayley', 'scaled_cayley', .*\), got 'log'",
        ),
        (ValueError, {"init": "eye"}, "orthogonal: `init` must be one of .*, got 'eye'"),
        (ValueError, {"base": "moving"}, "orthogonal: `base` must be one of .*, got 'moving'"),
        (ValueError, {"rebase_every": 0}, "orthogonal: `rebase_every` must be a positive integer, got 0"),
        (ValueError, {"rebase_every": 1.5}, "got 1.5"),
        (ValueError, {"num_negative": 1}, "applies only to the map 'scaled_cayley', got 1"),
        (ValueError, {"orthogonal_map": "scaled_cayley", "num_negative": 7}, "from 0 to N = 6.*, got 7"),
        (
            ValueError,
            {"orthogonal_map": "householder", "base": "dynamic"},
            "`base`, .* do not apply to the map 'householder'",
        ),
        (
            ValueError,
            {"orthogonal_map": "householder", "rebase_every": 2},
            "`rebase_every` .* do not apply to the map 'householder'",
        ),
        (
            ValueError,
            {"orthogonal_map": "householder", "reflections": 0},
            "`reflections` must be an integer from 1 to N = 6, got 0",
        ),
        (ValueError, {"orthogonal_map": "householder", "reflections": 7}, "from 1 to N = 6, got 7"),
        (
            ValueError,
            {"orthogonal_map": "householder", "init": "eye"},
            "orthogonal: `init` must be one of .*, got 'eye'",
        ),
        (ValueError, {"orthogonal_map": "givens", "base": "dynamic"}, "`base`, .* do not apply to the map 'givens'"),
        (
            ValueError,
            {"orthogonal_map": "givens", "init": "haar"},
            "`init` must be one of .* for the map 'givens', got 'haar'",
        ),
        (ValueError, {"orthogonal_map": "givens", "layers": 0}, "`layers` must be a positive integer, got 0"),
        (ValueError, {"orthogonal_map": "givens", "style": "fft"}, "`style` must be one of .*, got 'fft'"),
        (ValueError, {"orthogonal_map": "givens", "style": "butterfly"}, "N must be a power of two .*, got 6"),
        (ValueError, {"layers": 3}, "`layers` applies only to the map 'givens', got 3"),
        (
            ValueError,
            {"orthogonal_map": "householder", "style": "tunable"},
            "`style` applies only to the map 'givens', got 'tunable'",
        ),
        (ValueError, {"reflections": 3}, "`reflections` applies only to the map 'householder', got 3"),
    ],
)
def test_wrong_options(error, options, said):
    with pytest.raises(error, match=said):
        made(**options)


def test_wrong_weights():
    with pytest.raises(TypeError, match=r"`module` must be a torch\.nn\.Module, got int"):
        orthogonal(3, "weight")
    with pytest.raises(ValueError, match="must be the name of a parameter or buffer of the module, got 'missing'"):
        orthogonal(torch.nn.Linear(3, 3), "missing")
    with pytest.raises(ValueError, match=r"`bias` must be \(..., M, K\), got \(4,\)"):
        orthogonal(torch.nn.Linear(3, 4), "bias")
    with pytest.raises(TypeError, match=r"`weight` must be real and floating-point, got torch\.complex64"):
        orthogonal(torch.nn.Linear(3, 3, dtype=torch.complex64), "weight")
    linear = made()
    with pytest.raises(ValueError, match="`weight` is already parametrized"):
        orthogonal(linear, "weight")
    with pytest.raises(ValueError, match=r"the weight must be \(6, 6\), got \(5, 5\)"):
        linear.weight = torch.eye(5)
