"""The Triton kernels of linear_scan on CPU tensors. test_linear_scan.py runs this file with
TRITON_INTERPRET=1."""

import pytest
import torch
from triton.runtime import interpreter

from python_tests.samples import SCAN_OPTIONS, agree, scan_outputs_and_gradients, scan_sample
from rnnkern import reference
from rnnkern.ops._scan import scan_triton
from rnnkern.testing import as_reals

pytestmark = pytest.mark.usefixtures("nan_memory")


@pytest.fixture(autouse=True)
def ranges_over_tensors(monkeypatch):
    """The interpreter passes bounds of ranges as arrays with one element, which NumPy 2.4 no longer converts to int."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


class ByTriton(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, x, h0, batch_sizes, reset, reverse):
        h, last = scan_triton.forward(a, x, h0, batch_sizes, reset, reverse, True)
        (alone,) = scan_triton.forward(a, x, h0, batch_sizes, reset, reverse, False)
        assert torch.equal(last, alone)
        ctx.save_for_backward(a, h0, h, batch_sizes, reset)
        ctx.reverse = reverse
        return h, last

    @staticmethod
    def backward(ctx, grad_h, grad_last):
        args = (grad_h, grad_last, *ctx.saved_tensors, ctx.reverse)
        dx, dh0, da = scan_triton.backward(*args, True)
        for mine, other in zip((dx, dh0), scan_triton.backward(*args, False), strict=True):
            assert torch.equal(mine, other)
        return da, dx, dh0 if ctx.needs_input_grad[2] else None, None, None, None


def by_triton(a, x, state=None, *, batch_sizes=None, reset=None, reverse=False):
    if state is None and batch_sizes is not None:
        state = x.new_zeros(int(batch_sizes[0]), x.shape[-1])
    return ByTriton.apply(a, x, state, batch_sizes, reset, reverse)


def check(*sizes, **options):
    sample = scan_sample(*sizes, **options)
    agree(by_triton, reference.linear_scan, scan_outputs_and_gradients, [sample], f"{sizes} {options}")


@pytest.fixture(params=["serial", "chunked"])
def cut(request, monkeypatch):
    """Small blocks and chunks of a few steps, so that there are several of each."""
    monkeypatch.setattr(scan_triton, "BLOCK", 8)
    monkeypatch.setattr(scan_triton, "block_of", lambda size: 8)
    monkeypatch.setattr(scan_triton, "LEAST", 3)
    monkeypatch.setattr(scan_triton, "SERIAL", 0 if request.param == "serial" else 264)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("option", SCAN_OPTIONS)
def test_values_and_gradients(option, dtype, cut):
    check(11, 3, 13, dtype=dtype, **SCAN_OPTIONS[option])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_double_precision(dtype, cut):
    check(10, 2, 5, dtype=dtype, packed=True, reset=True)


def test_half_precision_is_computed_in_float32(cut):
    check(20, 2, 5, dtype=torch.float16, per_step=True)


@pytest.mark.parametrize("sizes", [(0, 2, 3), (4, 0, 3), (4, 2, 0), (1, 1, 1)], ids=str)
def test_nothing_and_one(sizes):
    check(*sizes, dtype=torch.float32)
    check(*sizes, dtype=torch.float32, initial=False, per_step=True)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # NumPy warns, a GPU does not
def test_a_product_that_overflows_is_not_taken_of_a_state_of_zero(cut):
    """The result is that of a single loop, although a product of factors, 1e30 to the power 11, overflows."""
    a, x = torch.full((2,), 1e30), torch.zeros(11, 1, 2)
    x[10, 0, 1] = 1.0
    h, _ = scan_triton.forward(a, x, None, None, None, False, True)
    assert torch.equal(h, x)
    dx, dh0, da = scan_triton.backward(torch.zeros_like(x), None, a, None, h, None, None, False, True)
    assert all(torch.equal(y, torch.zeros_like(y)) for y in (dx, dh0, da))


def test_a_reset_stops_nan_and_small_factors_do_not(cut):
    a, x = torch.full((1,), 1e-20), torch.ones(9, 2, 1)
    x[0] = torch.nan
    reset = torch.zeros(9, 2, dtype=torch.bool)
    reset[4, 1] = True
    h, _ = scan_triton.forward(a, x, None, None, reset, False, True)
    assert h[:, 0].isnan().all()
    assert torch.equal(h[:, 1, 0].isnan(), torch.arange(9) < 4)
    dx, *_ = scan_triton.backward(x.flip(0), None, a, None, torch.ones_like(h), None, reset, False, True)
    assert dx[:, 0].isnan().all()
    assert torch.equal(dx[:, 1, 0].isnan(), torch.arange(9) >= 4)


@pytest.mark.parametrize("kind", ["grad_h", "grad_last"])
def test_a_gradient_that_is_missing_is_zero(kind, cut):
    sample = scan_sample(8, 2, 5, packed=True)
    h, _ = reference.linear_scan(sample.a, sample.x, sample.state, **sample.kwargs)
    zeros = {"grad_h": torch.zeros_like(h), "grad_last": torch.zeros_like(sample.state)}
    given = {name: torch.randn_like(z) for name, z in zeros.items()}
    rest = (sample.a, sample.state, h, sample.kwargs["batch_sizes"], None, False, True)
    missing = scan_triton.backward(*(given | {kind: None}).values(), *rest)
    for mine, other in zip(missing, scan_triton.backward(*(given | {kind: zeros[kind]}).values(), *rest), strict=True):
        assert torch.equal(as_reals(mine), as_reals(other))
