"""The Triton kernels of moment_filter on CPU tensors; test_moment_filter.py runs this file in a process with
TRITON_INTERPRET=1."""

import pytest
import torch

from python_tests.gpu.interpreted_linear_scan import ranges_over_tensors  # noqa: F401
from python_tests.samples import FILTER_OPTIONS, agree, filter_outputs_and_gradients, filter_sample
from rnnkern import reference
from rnnkern.ops._scan import filter_triton

pytestmark = pytest.mark.usefixtures("nan_memory")

EVERY = 4
"""Number of steps per piece: a small power of two, so that there are several pieces."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(filter_triton, "BLOCK", 8)
    monkeypatch.setattr(filter_triton, "STEPS", EVERY)


class ByTriton(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, v0, q0, batch_sizes, reset, reverse, *rule):
        args = (u, v0, q0, batch_sizes, reset, reverse, *rule)
        y, v, *rest = filter_triton.forward(*args, EVERY)
        for mine, other in zip((y, v, *rest), filter_triton.forward(*args, 0), strict=False):
            assert torch.equal(mine, other)
        q, kept = rest or (None, None)
        ctx.save_for_backward(u, v0, q0, kept, batch_sizes, reset)
        ctx.rest = (reverse, *rule)
        return y, v, q

    @staticmethod
    def backward(ctx, grad_y, grad_v, grad_q):
        if ctx.rest[3] is None:
            grad_q = None
        du, *states = filter_triton.backward(grad_y, grad_v, grad_q, *ctx.saved_tensors, *ctx.rest, EVERY)
        states = [g if need else None for g, need in zip(states, ctx.needs_input_grad[1:3], strict=False)]
        return du, *states, *[None] * (9 - len(states))


def by_triton(u, state=None, *, mu, s, beta, eps, batch_sizes=None, reset=None, reverse=False):
    v0, q0, *_ = (*(state or ()), None, None)
    if v0 is None and batch_sizes is not None:
        v0 = u.new_zeros(int(batch_sizes[0]), u.shape[-1], dtype=torch.promote_types(u.dtype, torch.float32))
    y, *state = ByTriton.apply(u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps)
    return y, tuple(x for x in state if x is not None)


def check(*sizes, **options):
    sample = filter_sample(*sizes, **options)
    agree(by_triton, reference.moment_filter, filter_outputs_and_gradients, [sample], f"{sizes} {options}")


@pytest.mark.parametrize("option", FILTER_OPTIONS)
def test_values_and_gradients(option):
    check(6, 2, 5, dtype=torch.float32, **FILTER_OPTIONS[option])


def test_double_precision():
    check(6, 2, 3, packed=True, reset=True)


def test_half_precision_is_computed_in_float32():
    u, v0, q0, _ = filter_sample(6, 1, 3, dtype=torch.float16)
    rest = (v0, q0, None, None, False, 0.6, 0.7, 0.9, 0.01, EVERY)
    y, *states = filter_triton.forward(u, *rest)
    wide, *others = filter_triton.forward(u.float(), *rest)
    assert torch.equal(y, wide.half())
    for mine, other in zip(states, others, strict=True):
        assert torch.equal(mine, other)
    back = (*rest[:2], states[2], *rest[2:])
    du, *grads = filter_triton.backward(y, *others[:2], u, *back)
    wide, *others = filter_triton.backward(y.float(), *others[:2], u.float(), *back)
    assert torch.equal(du, wide.half())
    for mine, other in zip(grads, others, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("sizes", [(0, 2, 3), (4, 0, 3), (4, 2, 0), (1, 1, 1)], ids=str)
def test_nothing_and_one(sizes):
    check(*sizes, dtype=torch.float32)
    check(*sizes, dtype=torch.float32, initial=False, beta=None)


def test_a_reset_stops_nan():
    u = torch.ones(9, 2, 1)
    u[0] = torch.nan
    reset = torch.zeros(9, 2, dtype=torch.bool)
    reset[4, 1] = True
    y, _, _, kept = filter_triton.forward(u, None, None, None, reset, False, 0.5, 1.0, 0.9, 0.01, EVERY)
    assert y[:, 0].isnan().all()
    assert torch.equal(y[:, 1, 0].isnan(), torch.arange(9) < 4)
    args = (None, None, torch.ones_like(u), None, None, kept, None, reset, False, 0.5, 1.0, 0.9, 0.01, EVERY)
    du, *_ = filter_triton.backward(u.flip(0), *args)
    assert du[:, 0].isnan().all()
    assert torch.equal(du[:, 1, 0].isnan(), torch.arange(9) >= 4)


@pytest.mark.parametrize("kind", ["grad_y", "grad_v", "grad_q"])
def test_a_gradient_that_is_missing_is_zero(kind):
    u, v0, q0, kwargs = filter_sample(6, 2, 2, packed=True)
    rule = tuple(kwargs[name] for name in ("mu", "s", "beta", "eps"))
    layout = (kwargs["batch_sizes"], None, False)
    kept = filter_triton.forward(u, v0, q0, *layout, *rule, EVERY)[3]
    given = {"grad_y": torch.randn_like(u), "grad_v": torch.randn_like(v0), "grad_q": torch.randn_like(q0)}
    rest = (u, v0, q0, kept, *layout, *rule, EVERY)
    missing = filter_triton.backward(*(given | {kind: None}).values(), *rest)
    zeros = given | {kind: torch.zeros_like(given[kind])}
    for mine, other in zip(missing, filter_triton.backward(*zeros.values(), *rest), strict=True):
        assert torch.equal(mine, other)
