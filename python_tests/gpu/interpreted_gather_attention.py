"""The Triton kernels of gather_attention on CPU tensors. test_gather_attention.py runs this file with
TRITON_INTERPRET=1."""

import pytest
import torch

from python_tests.samples import agree, gather_sample
from rnnkern import reference
from rnnkern.ops._relevancy import gather_triton

pytestmark = pytest.mark.usefixtures("nan_memory")

NAMES = ("out", "weights", "grad of q", "grad of u", "grad of h", "grad of v")


def by_triton(tensors, alignment):
    q, u, h, idx, v = tensors
    v, dot = v.view(-1, v.shape[-1]), alignment == "dot"
    out, lse, weights = gather_triton.forward(q, u, h, idx, v, dot, True, True)
    dq, du, dh, dv = gather_triton.backward(upstream_of(out), q, u, h, idx, v, lse, dot)
    return out, weights, dq, du, dh, dv.view(tensors[4].shape)


def by_reference(tensors, alignment):
    q, u, h, idx, v = tensors
    q, u, h, v = leaves = [x.detach().requires_grad_() for x in (q, u, h, v)]
    out, weights = reference.gather_attention(q, u, h, idx, v, alignment=alignment, return_weights=True)
    return out.detach(), weights, *torch.autograd.grad(out, leaves, upstream_of(out))


def upstream_of(out):
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(out.dtype)


def check(tensors, alignment):
    results = lambda run, tensors: dict(zip(NAMES, run(tensors, alignment), strict=True))  # noqa: E731
    agree(by_triton, by_reference, results, [tensors])


@pytest.mark.parametrize(("sizes", "alignment", "dtype"), [
    ((2, 6, 5, 3, 16), "additive", torch.float32), ((1, 3, 7, 9, 130), "additive", torch.float64),
    ((2, 3, 5, 1, 1), "dot", torch.float64), ((1, 4, 4, 6, 33), "dot", torch.float32),
])  # fmt: skip
def test_values_and_gradients(sizes, alignment, dtype, monkeypatch):
    monkeypatch.setattr(gather_triton, "TILE", 512)
    check(gather_sample(*sizes, dtype=dtype), alignment)


@pytest.mark.parametrize("alignment", ["additive", "dot"])
def test_a_memory_that_all_attend_to_is_added_up_in_pieces(alignment, monkeypatch):
    monkeypatch.setattr(gather_triton, "PIECE", 4)
    q, u, h, idx, v = gather_sample(1, 9, 3, 3, 6, dtype=torch.float32)
    idx[..., 1:] = torch.where(idx[..., 1:] < 0, -1, 2)
    pieces = gather_triton._by_memory(idx, 3)[2]
    assert pieces.max() >= 4
    assert pieces.min() == 1
    check((q, u, h, idx, v), alignment)
    for a, again in zip(*(by_triton((q, u, h, idx, v), alignment) for _ in range(2)), strict=True):
        assert torch.equal(a, again)


@pytest.mark.parametrize(("scale", "dtype"), [
    (1e-4, torch.float32), (1e-2, torch.float32), (0.5, torch.float64), (1.0, torch.float32), (30.0, torch.float32),
])  # fmt: skip
def test_tanh_is_as_good_near_0_as_far_from_it(scale, dtype):
    """Uses u alone, with q = 0 and a v with one nonzero unit: the gradients of v and u then contain tanh and its
    derivative."""
    q, u, h, idx, v = gather_sample(1, 4, 5, 4, 64, dtype=dtype)
    check((0 * q, scale * u, h, idx, v), "additive")


def test_a_v_for_each_of_some_samples():
    q, u, h, idx, _ = gather_sample(4, 2, 4, 3, 6, dtype=torch.float32)
    check((q, u, h, idx, torch.randn(2, 6)), "additive")


@pytest.mark.parametrize("sizes", [(0, 2, 3, 2, 4), (2, 0, 3, 2, 4), (2, 2, 3, 0, 4)], ids=str)
def test_nothing(sizes):
    check(gather_sample(*sizes, dtype=torch.float32), "additive")
    q, u, h, idx, v = gather_sample(2, 3, 4, 2, 5, dtype=torch.float32)
    check((q, u[:, :0], h[:, :0], torch.full_like(idx, -1), v), "additive")


def test_indices_that_are_no_memory_are_none():
    q, u, h, idx, v = gather_sample(1, 4, 3, 3, 5, dtype=torch.float32)
    wild = torch.where(idx == 1, torch.tensor([2**31 - 1, -(2**31), 3] * 4).view(1, 4, 3), idx).int()
    tame = torch.where(idx == 1, -1, idx).int()
    for a, b in zip(by_triton((q, u, h, wild, v), "dot"), by_triton((q, u, h, tame, v), "dot"), strict=True):
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # NumPy warns, a GPU does not
def test_nan_stays_where_it_is_attended_to():
    q, u, h, idx, v = gather_sample(1, 6, 5, 4, 3, dtype=torch.float32)
    idx[0, 1:3], idx[0, 3:] = idx[0, 1:3].clamp_max(3), 4
    u[0, 4] = torch.nan
    out, *_ = by_triton((q, u, h, idx, v), "additive")
    assert torch.equal(out[0, 0], torch.zeros(3))
    assert out[0, 1:3].isfinite().all()
    assert out[0, 3:].isnan().all()
