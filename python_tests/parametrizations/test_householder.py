"""Weights that are products of reflections: initial values, gradients, training, checkpoints, copies."""

import copy
import io
import pickle

import pytest
import torch

import rnnkern
from rnnkern.parametrizations import INITS, Householder, orthogonal, orthogonal_matrix, reset

F64 = torch.float64


def made(size=6, reflections=None, dtype=F64, **options):
    linear = torch.nn.Linear(size, size, bias=False, dtype=dtype)
    return orthogonal(linear, "weight", map="householder", reflections=reflections, **options)


def distance(W):
    W = W.detach().double()
    return (W.mT @ W - torch.eye(W.shape[-1], dtype=F64)).abs().max().item()


def vectors(module):
    return module.parametrizations.weight.original


@pytest.mark.parametrize("reflections", [1, 2, 5, 6, None])
@pytest.mark.parametrize("init", INITS)
def test_initial_weights_are_orthogonal(init, reflections):
    module = made(6, reflections, init=init)
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
    orthogonal(module, "weight", map="householder", init=init)
    torch.testing.assert_close(module.weight, wanted)


def test_an_odd_number_reflects_the_last_axis():
    torch.testing.assert_close(
        made(5, 3, init="identity").weight, torch.diag(torch.tensor([1, 1, 1, 1, -1.0])).double()
    )


def test_haar_columns_are_uniform():
    """Of a column of a uniformly random orthogonal matrix each entry has mean 0 and variance 1 / N, and no two
    correlate."""
    heads = torch.nn.Parameter(torch.empty(4000, 3, 3, dtype=F64))
    module = torch.nn.Module()
    module.weight = heads
    orthogonal(module, "weight", map="householder", init="haar", reflections=2)
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


def test_it_reaches_a_rotation():
    module = made(4, init="identity")
    target = orthogonal_matrix(torch.empty(4, 4, dtype=F64), "haar")
    optimiser = torch.optim.Adam(module.parameters(), 0.02)
    with torch.no_grad():
        vectors(module).add_(0.1 * torch.randn(4, 4))
    for _ in range(800):
        optimiser.zero_grad()
        loss = (module.weight - target).square().sum()
        loss.backward()
        optimiser.step()
    assert loss < 1e-2


def test_checkpoints_copies_and_pickles():
    module = made(6, 4, torch.float32)
    again = made(6, 4, torch.float32)
    again.load_state_dict(module.state_dict())
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    others = [again, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(stored, weights_only=False)]
    for other in others:
        assert torch.equal(other.weight, module.weight)
        reset(other, "weight")
        assert not torch.equal(other.weight, module.weight)
    assert made(6, 4).double().weight.dtype == F64


def test_on_the_meta_device():
    linear = torch.nn.Linear(6, 6, device="meta")
    orthogonal(linear, "weight", map="householder", reflections=2)
    assert (linear.weight.shape, linear.weight.device.type) == ((6, 6), "meta")
    linear.to_empty(device="cpu")
    reset(linear, "weight")
    assert distance(linear.weight) < 1e-6


def test_no_matrix_may_be_assigned():
    module = made()
    assert isinstance(module.parametrizations.weight[0], Householder)
    with pytest.raises(RuntimeError, match="right_inverse"):
        module.weight = torch.eye(6, dtype=F64)
