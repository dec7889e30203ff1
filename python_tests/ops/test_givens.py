"""What givens_product and givens_recurrence alone promise: the rotations themselves, many layers and tiny numbers."""

import math

import pytest
import torch

from python_tests.samples import agree, draws, givens_sample
from python_tests.samples.operators import C64, C128, F32, F64, STYLES, check, draw, results
from rnnkern import reference
from rnnkern.ops import givens_product, givens_recurrence

SAMPLES = [("tunable", (33, 40, 100)), ("tunable", (64, 3, 65, 2)), ("butterfly", (128, 9, 17, 2, 2))]
"""Style, N, L, R and the batch shape."""


def test_a_plane_by_hand():
    angles = torch.tensor([[0.3]], dtype=F64)
    c, s = math.cos(0.3), math.sin(0.3)
    torch.testing.assert_close(givens_product(angles), torch.tensor([[c, -s], [s, c]], dtype=F64))
    torch.testing.assert_close(
        givens_product(angles, torch.tensor([1.0, 2.0]).double()).tolist(), [c - 2 * s, s + 2 * c]
    )


def pairs_of(style, size, layer):
    """The entries that a layer changes, according to its matrix."""
    angles = torch.zeros(layer + 1, size // 2, dtype=F64)
    angles[layer] = 0.5
    W = givens_product(angles, style=style, size=size)
    return [(b, a) for a, b in W.tril(-1).nonzero().tolist()]


def test_who_is_paired():
    assert pairs_of("tunable", 6, 0) == [(0, 1), (2, 3), (4, 5)]
    assert pairs_of("tunable", 6, 1) == pairs_of("tunable", 6, 3) == [(1, 2), (3, 4)]
    assert pairs_of("tunable", 5, 1) == [(1, 2), (3, 4)]
    assert pairs_of("butterfly", 8, 0) == pairs_of("butterfly", 8, 3) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert pairs_of("butterfly", 8, 1) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert pairs_of("butterfly", 8, 2) == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize(("style", "sizes"), SAMPLES)
def test_the_matrix_is_a_rotation_and_the_product_is_its(style, sizes):
    angles, x = givens_sample(*sizes)
    W = givens_product(angles, style=style, size=sizes[0])
    eye = torch.eye(sizes[0], dtype=F64)
    assert (W.mT @ W - eye).abs().max() < 1e-13
    torch.testing.assert_close(torch.linalg.det(W), torch.ones(W.shape[:-2], dtype=F64))
    torch.testing.assert_close(givens_product(angles, x, style=style), x @ W.mT)


def test_after_as_many_layers_every_entry_sees_every_other():
    for style, size, layers in (("butterfly", 16, 4), ("tunable", 7, 7)):
        W = givens_product(torch.full((layers, size // 2), 0.7, dtype=F64), style=style, size=size)
        assert W.abs().min() > 1e-4
        before = givens_product(torch.full((layers - 1, size // 2), 0.7, dtype=F64), style=style, size=size)
        assert (before == 0).any()


@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_thousand_layers_stay_orthogonal(dtype):
    W = givens_product(torch.randn(1000, 32, dtype=dtype)).double()
    assert (W.mT @ W - torch.eye(64)).abs().max() <= 150 * torch.finfo(dtype).eps


def test_what_the_backward_rotates_back_is_what_came():
    """Rounding errors of 1,000 layers, forward and back."""
    check("givens_product", 40, 1000, 20, dtype=F32)


def test_an_angle_that_turns_nobody_has_no_gradient():
    angles = torch.randn(2, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(givens_product(angles).sin().sum(), angles)
    assert grad[1, 2] == 0
    assert (grad != 0).sum() == 5


def test_shapes_and_strides():
    angles, x = givens_sample(6, 4, 12)
    wanted = givens_product(angles, x)
    assert torch.equal(givens_product(angles, x.reshape(2, 3, 2, 6)), wanted.reshape(2, 3, 2, 6))
    assert torch.equal(givens_product(angles, x[0]), wanted[0])
    assert torch.equal(givens_product(angles.mT.contiguous().mT, x.mT.contiguous().mT), wanted)
    assert torch.equal(givens_product(angles, x[:1].expand(5, 6)), wanted[:1].expand(5, 6))
    assert givens_product(angles, x[:0]).shape == (0, 6)
    assert torch.equal(givens_product(angles[:0], x), x)
    assert torch.equal(givens_product(torch.zeros(3, 0), size=1), torch.ones(1, 1))


# ---- givens_recurrence


def test_the_equation_by_hand():
    """One pair, one layer, two steps."""
    c, s, b = torch.tensor(0.3).double().cos(), torch.tensor(0.3).double().sin(), torch.tensor([-0.1, 0.2]).double()
    u, h = torch.tensor([[[1.0, -2.0]], [[0.05, 0.5]]]).double(), torch.tensor([0.7, 0.4]).double()
    wanted = []
    for u_t in u[:, 0]:
        z = u_t + torch.stack([c * h[0] - s * h[1], s * h[0] + c * h[1]])
        h = z.sign() * (z.abs() + b).relu()
        wanted.append(h)
    found, last = givens_recurrence(u, torch.tensor([[0.3]]).double(), torch.tensor([[0.7, 0.4]]).double(), b)
    torch.testing.assert_close(found[:, 0], torch.stack(wanted))
    torch.testing.assert_close(last[0], wanted[-1])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.sampled
def test_layers_in_pieces_are_the_layers(style):
    """Vectors that are larger than the cache, with more layers than a block of layers."""
    for size, layers, dtype in ((256, 11, C128), (300 if style == "tunable" else 512, 150, F64)):
        check("givens_recurrence", 2, 3, size, layers, style=style, dtype=dtype)


@pytest.mark.parametrize("dtype", [F32, C64])
def test_a_complex_number_of_zero_and_one_of_nearly_zero(dtype):
    """There is no division by |z| = 0, and for tiny |z| the direction is still exact."""
    small = torch.tensor([0.0, 1e-30, 1e-6, 1.0])

    def sample():
        call = draw("givens_recurrence", 3, 2, 4, dtype=dtype)
        call = call.with_tensors({"state": 0 * call.tensors["state"], "u": call.tensors["u"] * small})
        assert all(x.isfinite().all() for x in results(givens_recurrence, call).values())
        return call

    agree(givens_recurrence, reference.givens_recurrence, results, draws(sample))


def test_complex_numbers_without_phases_are_turned_by_real_layers():
    u, angles, h0, bias, *_ = draw("givens_recurrence", dtype=C128).tensors.values()
    h, last = givens_recurrence(u, angles, h0, bias)
    wanted = reference.givens_recurrence(u, angles, h0, bias)
    torch.testing.assert_close((h, last), wanted)
