"""Initial weights, over the initializations: rotations by every map, factors, and uniform distributions."""

import math

import pytest
import torch
from torch import nn

import rnnkern
from python_tests.samples.parametrizations import from_unitary, originals, registered
from rnnkern.parametrizations import orthogonal_matrix, unitary_matrix
from rnnkern.parametrizations._factors import GIVENS_INITS
from rnnkern.parametrizations._initial import INITS
from rnnkern.parametrizations._orthogonal import MAPS

F64 = torch.float64
PLANES = ["henaff", "cayley", "identity"]


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("orthogonal_map", MAPS)
@pytest.mark.parametrize("init", INITS)
def test_initial_matrices_are_rotations(init, orthogonal_map, size):
    V = orthogonal_matrix(torch.empty(3, size, size, dtype=F64), init, orthogonal_map)
    assert from_unitary(V) < 1e-14
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


@pytest.mark.parametrize(
    ("name", "changed", "wanted"),
    [
        ("exp", {}, 1),
        ("cayley", {}, 1),
        ("scaled_cayley-dynamic", {"init": "haar"}, -1),
        ("scaled_cayley-dynamic", {"init": "haar", "num_negative": 2}, 1),
        *(("householder", {"init": init, "reflections": m}, (-1) ** m) for init in INITS for m in (1, 2, 5, 6)),
        *(("givens", {"init": init}, 1) for init in GIVENS_INITS),
        ("schur", {}, 1),
        *(("spectral_margin", {"init": init}, 1) for init in INITS),
        *(("unitary-exp", {"init": init}, 1) for init in INITS if init != "haar"),
        *(("unitary-scaled_cayley-dynamic", {"init": init}, None) for init in INITS),
    ],
)
def test_initial_weights_are_orthogonal_with_this_determinant(name, changed, wanted):
    W = registered(name, **changed).weight
    assert from_unitary(W) < 1e-14
    assert wanted is None or torch.linalg.det(W).item() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "changed", "shapes"),
    [
        ("householder-4", {"init": "haar"}, [(6, 4)]),
        ("householder-wide", {}, [(7, 4)]),
        ("givens", {"layers": None}, [(5, 2)]),
        ("givens-tall", {}, [(7, 3)]),
        ("givens-butterfly", {}, [(3, 4)]),
        ("schur", {}, [(7, 7), (3,), (4,), (7, 7)]),
        ("unitary-fourier", {}, [(3, 5), (2, 5, 2)]),
        ("unitary-givens", {}, [(4, 2), (4, 2), (4,)]),
        ("unitary-exp", {}, [(4, 4)]),
        ("unitary-scaled_cayley-dynamic", {}, [(4, 4), (4,)]),
    ],
)
def test_shapes_of_the_parameters(name, changed, shapes):
    assert [tuple(p.shape) for p in originals(registered(name, **changed))] == shapes


@pytest.mark.parametrize("size", [4, 6])
@pytest.mark.parametrize("options", [{"orthogonal_map": "householder"}, {"orthogonal_map": "givens", "layers": 1}])
@pytest.mark.parametrize("init", PLANES)
def test_factors_turn_planes_as_the_exponential_does(init, options, size):
    linear = nn.Linear(size, size, bias=False, dtype=F64)
    torch.manual_seed(0)
    wanted = orthogonal_matrix(linear.weight, init)
    torch.manual_seed(0)
    rnnkern.parametrizations.orthogonal(linear, "weight", init=init, **options)
    torch.testing.assert_close(linear.weight, wanted)


@pytest.mark.parametrize("init", GIVENS_INITS)
def test_angles_of_later_layers_are_zero_unless_all_are_drawn(init):
    (angles,) = originals(registered("givens", init=init))
    assert angles.abs().max() <= torch.pi
    assert bool(angles[1:].any()) == (init == "uniform")


def test_an_odd_number_of_reflections_reflects_the_last_axis():
    W = registered("householder", init="identity", reflections=3).weight
    torch.testing.assert_close(W, torch.diag(torch.tensor([1, 1, 1, 1, 1, -1.0])).double())


def test_a_single_unit():
    linear = rnnkern.parametrizations.orthogonal(nn.Linear(1, 1), "weight", "givens", init="uniform")
    assert linear.weight == 1
    for name in ("fourier", "givens"):
        module = nn.Linear(1, 1, bias=False, dtype=torch.complex64)
        rnnkern.parametrizations.unitary(module, "weight", name, init="uniform")
        torch.testing.assert_close(module.weight.abs(), torch.ones(1, 1))


# ---- uniform distributions


def test_random_rotations_are_uniform():
    """The trace of a random rotation has mean 0 and variance 1 (Diaconis and Shahshahani 1994), also after
    multiplication by a fixed rotation."""
    V = orthogonal_matrix(torch.empty(4000, 5, 5), "haar").double()
    turn = orthogonal_matrix(torch.empty(5, 5, dtype=F64), "haar")
    for sample in (V, V @ turn):
        trace = sample.diagonal(dim1=-2, dim2=-1).sum(-1)
        assert abs(trace.mean()) < 0.1
        assert abs(trace.var() - 1) < 0.14


def test_columns_of_random_reflections_are_uniform():
    """In a column of a uniformly random orthogonal matrix, each entry has mean 0 and variance 1 / N, and entries are
    uncorrelated."""
    module = nn.Module()
    module.weight = nn.Parameter(torch.empty(4000, 3, 3, dtype=F64))
    rnnkern.parametrizations.orthogonal(module, "weight", "householder", init="haar", reflections=2)
    columns = module.weight.detach()[..., :2].flatten(1)
    covariance = columns.T @ columns / len(columns)
    torch.testing.assert_close(covariance, torch.eye(6, dtype=F64) / 3, rtol=0, atol=0.03)
    assert columns.mean(0).abs().max() < 0.04


def test_random_unitary_matrices_are_uniform():
    """An entry has mean 0 and variance 1 / N, and the mean of its square is 0, because all phases are equally
    likely."""
    entries = unitary_matrix(torch.empty(4000, 3, 3, dtype=torch.complex128))[:, 0, 0]
    assert entries.mean().abs() < 0.06
    assert abs(entries.abs().square().mean() - 1 / 3) < 0.023
    assert entries.square().mean().abs() < 0.04
