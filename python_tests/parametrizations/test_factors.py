"""Weights that are products of reflections or rotation layers: initial values, gradients, training, copies."""

import copy
import io
import pickle

import pytest
import torch

import rnnkern
from rnnkern.parametrizations import INITS, Givens, Householder, orthogonal, orthogonal_matrix, reset_parameters
from rnnkern.parametrizations._factors import GIVENS_INITS

F64 = torch.float64


def made(size=6, reflections=None, dtype=F64, init="henaff", **options):
    options["init"] = init
    linear = torch.nn.Linear(size, size, bias=False, dtype=dtype)
    return orthogonal(linear, "weight", orthogonal_map="householder", reflections=reflections, **options)


def turned(size=6, dtype=F64, init="henaff", **options):
    options["init"] = init
    return orthogonal(
        torch.nn.Linear(size, size, bias=False, dtype=dtype), "weight", orthogonal_map="givens", **options
    )


def distance(W):
    W = W.detach().double()
    return (W.mT @ W - torch.eye(W.shape[-1], dtype=F64)).abs().max().item()


def vectors(module):
    return module.parametrizations.weight.original


# ---- reflections


@pytest.mark.parametrize("reflections", [1, 2, 5, 6, None])
@pytest.mark.parametrize("init", INITS)
def test_initial_weights_are_orthogonal(init, reflections):
    module = made(6, reflections, init=init)
    assert isinstance(module.parametrizations.weight[0], Householder)
    assert vectors(module).shape == (6, reflections or 6)
    assert vectors(module).norm(dim=0).min() > 0
    assert distance(module.weight) < 1e-14
    assert round(torch.linalg.det(module.weight).item()) == (-1) ** (reflections or 6)


@pytest.mark.parametrize("size", [4, 6])
@pytest.mark.parametrize("init", ["henaff", "cayley", "identity"])
def test_pairs_of_reflections_turn_planes_as_the_exponential_does(init, size):
    like = torch.empty(size, size, dtype=F64)
    torch.manual_seed(0)
    wanted = orthogonal_matrix(like, init)
    torch.manual_seed(0)
    module = torch.nn.Linear(size, size, bias=False, dtype=F64)
    torch.manual_seed(0)
    orthogonal(module, "weight", orthogonal_map="householder", init=init)
    torch.testing.assert_close(module.weight, wanted)


def test_an_odd_number_reflects_the_last_axis():
    torch.testing.assert_close(
        made(5, 3, init="identity").weight, torch.diag(torch.tensor([1, 1, 1, 1, -1.0])).double()
    )


def test_haar_columns_are_uniform():
    """In a column of a uniformly random orthogonal matrix, each entry has mean 0 and variance 1 / N, and entries are
    uncorrelated."""
    heads = torch.nn.Parameter(torch.empty(4000, 3, 3, dtype=F64))
    module = torch.nn.Module()
    module.weight = heads
    orthogonal(module, "weight", orthogonal_map="householder", init="haar", reflections=2)
    columns = module.weight.detach()[..., :2].flatten(1)
    covariance = columns.T @ columns / len(columns)
    torch.testing.assert_close(covariance, torch.eye(6, dtype=F64) / 3, rtol=0, atol=0.03)
    assert columns.mean(0).abs().max() < 0.04


def test_the_weight_is_held():
    module = made(6, 3)
    assert module.weight is module.weight
    before = module.weight.detach().clone()
    optimiser = torch.optim.Adam(module.parameters(), 0.05)
    module.weight.square().sin().sum().backward()
    optimiser.step()
    assert not torch.equal(module.weight, before)
    assert distance(module.weight) < 1e-14


def test_gradients_are_those_of_the_formula():
    module = made(6, 4)
    G = torch.randn(6, 6, dtype=F64)
    V = vectors(module)
    (found,) = torch.autograd.grad((module.weight * G).sum(), V)
    (wanted,) = torch.autograd.grad((rnnkern.reference.householder_product(V) * G).sum(), V)
    torch.testing.assert_close(found, wanted)
    (first,) = torch.autograd.grad(module.weight.sin().sum(), V, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), V)
    assert second.abs().sum() > 0


def test_10_000_updates_stay_orthogonal():
    module = made(24, 16, torch.float32, init="haar")
    V, generator = vectors(module), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(10_000):
            V.sub_(1e-3 * torch.randn(24, 16, generator=generator))
    assert distance(module.weight) < 2e-6


# ---- layers of rotations


@pytest.mark.parametrize(
    ("size", "style", "layers"), [(6, None, 6), (5, "tunable", 5), (1, None, 1), (8, "butterfly", 3)]
)
@pytest.mark.parametrize("init", GIVENS_INITS)
def test_initial_layers(init, size, style, layers):
    module = turned(size, init=init, style=style)
    angles = vectors(module)
    assert angles.shape == (layers, size // 2)
    assert angles.abs().max() <= torch.pi if angles.numel() else size == 1
    assert bool(angles[1:].any()) == (init == "uniform" and angles[1:].numel() > 0)
    assert distance(module.weight) < 1e-14
    torch.testing.assert_close(torch.linalg.det(module.weight), torch.ones((), dtype=F64))


@pytest.mark.parametrize("init", ["henaff", "cayley", "identity"])
def test_the_first_layer_turns_planes_as_the_exponential_does(init):
    like = torch.empty(6, 6, dtype=F64)
    module = torch.nn.Linear(6, 6, bias=False, dtype=F64)
    torch.manual_seed(0)
    wanted = orthogonal_matrix(like, init)
    torch.manual_seed(0)
    orthogonal(module, "weight", orthogonal_map="givens", init=init, layers=1)
    torch.testing.assert_close(module.weight, wanted)


def test_gradients_of_angles_are_those_of_the_formula():
    module = turned(5, layers=4, init="uniform")
    G, angles = torch.randn(5, 5, dtype=F64), vectors(module)
    (found,) = torch.autograd.grad((module.weight * G).sum(), angles)
    (wanted,) = torch.autograd.grad((rnnkern.reference.givens_product(angles, size=5) * G).sum(), angles)
    torch.testing.assert_close(found, wanted)


def test_10_000_updates_of_angles_stay_orthogonal():
    module, generator = turned(24, torch.float32, init="uniform"), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(10_000):
            vectors(module).sub_(1e-3 * torch.randn(24, 12, generator=generator))
    assert distance(module.weight) < 3e-6


# ---- reflections and rotations


@pytest.mark.parametrize(("made", "kind"), [(made, Householder), (turned, Givens)])
def test_every_rotation_is_reached(made, kind):
    module = made(4, init="identity")
    assert isinstance(module.parametrizations.weight[0], kind)
    target = orthogonal_matrix(torch.empty(4, 4, dtype=F64), "haar")
    with torch.no_grad():
        vectors(module).add_(0.3 * torch.randn(vectors(module).shape))
    optimiser = torch.optim.LBFGS(module.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = (module.weight - target).square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    assert closure() < 1e-8


@pytest.mark.parametrize(
    "made", [lambda: made(6, 4, torch.float32), lambda: turned(6, torch.float32, layers=4, init="uniform")]
)
def test_checkpoints_copies_and_pickles(made):
    module, again = made(), made()
    again.load_state_dict(module.state_dict())
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    others = [again, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(stored, weights_only=False)]
    for other in others:
        assert torch.equal(other.weight, module.weight)
        reset_parameters(other, "weight")
        assert not torch.equal(other.weight, module.weight)
    assert made().double().weight.dtype == F64


@pytest.mark.parametrize(
    "options",
    [{"orthogonal_map": "householder", "reflections": 2}, {"orthogonal_map": "givens", "layers": 3, "init": "cayley"}],
)
@pytest.mark.parametrize("size", [5, 6])
def test_on_the_meta_device(size, options):
    linear = torch.nn.Linear(size, size, device="meta")
    orthogonal(linear, "weight", **options)
    assert (linear.weight.shape, linear.weight.device.type) == ((size, size), "meta")
    linear.to_empty(device="cpu")
    reset_parameters(linear, "weight")
    assert distance(linear.weight) < 1e-6


@pytest.mark.parametrize("made", [made, turned])
def test_no_matrix_may_be_assigned(made):
    module = made()
    with pytest.raises(RuntimeError, match="right_inverse"):
        module.weight = torch.eye(6, dtype=F64)
