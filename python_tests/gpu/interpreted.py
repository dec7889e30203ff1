"""Triton kernels in Triton's interpreter: values and gradients over a table of operators, and what one alone promises.

They take the place of the CPU kernels, so that the public functions run them on CPU tensors."""

import sys
import warnings

import pytest
import torch
from triton.runtime import interpreter

import rnnkern
from python_tests.gpu.triton_calls import OPERATORS
from python_tests.samples import (
    FILTER_OPTIONS,
    SCAN_OPTIONS,
    agree,
    filter_sample,
    filtered,
    gather_outputs_and_gradients,
    gather_sample,
)
from rnnkern import ops, reference
from rnnkern.ops._relevancy import gather_triton
from rnnkern.ops._scan import filter_triton, scan_triton

pytestmark = pytest.mark.usefixtures("nan_memory")
F16, F32, F64, C64, C128 = torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128

library = torch.library.Library("rnnkern", "IMPL")
with warnings.catch_warnings(action="ignore"):  # that there were other kernels
    for operator, (module, *_) in OPERATORS.items():
        library.impl(operator, module.forward, "CPU")
        library.impl(f"{operator}_backward", module.backward, "CPU")


@pytest.fixture(autouse=True)
def on_triton(monkeypatch):
    """Also small blocks and chunks of a few steps, so that there are several of each."""
    faces = {name: sys.modules[getattr(ops, name).__module__] for name in OPERATORS}
    for face in faces.values():
        monkeypatch.setattr(face, "triton_refusal", lambda device: None)
    for name, value in {"BLOCK": 8, "block_of": lambda size: 8, "LEAST": 3}.items():
        monkeypatch.setattr(scan_triton, name, value)
    for holder, name in ((filter_triton, "STEPS"), (faces["moment_filter"], "EVERY")):
        monkeypatch.setattr(holder, name, 4)
    monkeypatch.setattr(filter_triton, "BLOCK", 8)
    monkeypatch.setattr(gather_triton, "TILE", 512)
    with rnnkern.use("triton"):
        yield


@pytest.fixture(params=["serial", "chunked"])
def cut(request, monkeypatch):
    """Whether a scan is divided in time."""
    monkeypatch.setattr(scan_triton, "SERIAL", 0 if request.param == "serial" else 264)


@pytest.fixture(autouse=True)
def ranges_over_tensors(monkeypatch):
    """The interpreter passes bounds of ranges as arrays with one element, which NumPy 2.4 no longer converts to int."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


def agrees(operator, call, name=""):
    agree(getattr(ops, operator), getattr(reference, operator), OPERATORS[operator][2], [call], name)


def check(operator, *sizes, **options):
    agrees(operator, OPERATORS[operator][1](*sizes, **options), f"{operator} {sizes} {options}")


@pytest.mark.parametrize("dtype", [F32, C64])
@pytest.mark.parametrize("option", SCAN_OPTIONS)
def test_linear_scan(option, dtype, cut):
    check("linear_scan", 11, 3, 13, dtype=dtype, **SCAN_OPTIONS[option])


NO_STATE = {"initial": False, "per_step": True}
MOMENTUM = {"initial": False, "beta": None}
CALLS = [
    ("linear_scan", (10, 2, 5), {"dtype": F64, "packed": True, "reset": True}),
    ("linear_scan", (10, 2, 5), {"dtype": C128, "packed": True, "reset": True}),
    ("linear_scan", (20, 2, 5), {"dtype": F16, "per_step": True}),
    *(("linear_scan", sizes, options) for sizes in ((0, 2, 3), (4, 0, 3), (4, 2, 0), (1, 1, 1))
      for options in ({"dtype": F32}, {"dtype": F32, **NO_STATE})),
    *(("moment_filter", (6, 2, 5), {"dtype": F32, **options}) for options in FILTER_OPTIONS.values()),
    ("moment_filter", (6, 2, 3), {"dtype": F64, "packed": True, "reset": True}),
    *(("moment_filter", sizes, options) for sizes in ((0, 2, 3), (4, 0, 3), (4, 2, 0), (1, 1, 1))
      for options in ({"dtype": F32}, {"dtype": F32, **MOMENTUM})),
    # Two blocks of features.
    *(("similarity", (2, 7, 70), {"dtype": dtype, **options}) for dtype in (F32, F64) for options in (
        {"mask": "causal", "packed": True},
        {"mask": "strict", "packed": True, "values": 3, "lengths": True},
        {"mask": "full", "two": True, "values": 20, "norm": "biased"},
        {"mask": "causal", "norm": None, "two": True, "lengths": True},
        {"mask": "causal", "segments": (2, 1, 4), "lengths": True},
        {"mask": "strict", "affine": False, "eps": 0.3},
    )),
    *(("similarity", (2, objects, 20), {"dtype": F32, "values": 2}) for objects in (1, 2, 17)),
    ("similarity", (0, 4, 5), {"dtype": F32, "values": 2}),
    ("gather_attention", (2, 6, 5, 3, 16), {"dtype": F32}),
    ("gather_attention", (1, 3, 7, 9, 130), {"dtype": F64}),
    ("gather_attention", (2, 3, 5, 1, 1), {"dtype": F64, "alignment": "dot"}),
    ("gather_attention", (1, 4, 4, 6, 33), {"dtype": F32, "alignment": "dot"}),
    *(("gather_attention", sizes, {"dtype": F32}) for sizes in ((0, 2, 3, 2, 4), (2, 0, 3, 2, 4), (2, 2, 3, 0, 4))),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "sizes", "options"), CALLS, ids=str)
def test_values_and_gradients(operator, sizes, options):
    check(operator, *sizes, **options)


# ---- of scans and filters


def outputs_of(operator, call):
    """The leaves, and the results one after the other."""
    leaves = {name: x.detach().requires_grad_() for name, x in call.leaves().items()}
    if operator == "linear_scan":
        return list(leaves.values()), list(ops.linear_scan(**leaves, **call.kwargs))
    return list(leaves.values()), list(filtered(ops.moment_filter, **leaves, **call.kwargs))


@pytest.mark.parametrize(("operator", "count"), [("linear_scan", 2), ("moment_filter", 3)])
def test_a_gradient_that_is_missing_is_zero(operator, count, cut):
    call = OPERATORS[operator][1](8, 2, 5, packed=True)
    for missing in range(count):
        leaves, outputs = outputs_of(operator, call)
        upstream = [torch.zeros_like(y) if k == missing else torch.randn_like(y) for k, y in enumerate(outputs)]
        given = torch.autograd.grad(outputs, leaves, upstream, retain_graph=True, materialize_grads=True)
        del outputs[missing], upstream[missing]
        for x, y in zip(torch.autograd.grad(outputs, leaves, upstream, materialize_grads=True), given, strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("operator", ["linear_scan", "moment_filter"])
def test_what_is_not_asked_for_changes_no_bit(operator, cut):
    """The sequence of a scan, what a filter saves, and the gradient of a scan's factors."""
    call = OPERATORS[operator][1](11, 2, 5, dtype=F32, reset=True)
    leaves, outputs = outputs_of(operator, call)
    with torch.no_grad():
        assert all(map(torch.equal, outputs_of(operator, call)[1], outputs))
        if operator == "linear_scan":
            _, last = ops.linear_scan(*leaves, **call.kwargs, return_sequence=False)
            assert torch.equal(last, outputs[1])
    if operator == "linear_scan":
        h, _ = ops.linear_scan(leaves[0].detach(), *leaves[1:], **call.kwargs)
        wanted = torch.autograd.grad(outputs[0].sum(), leaves[1:])
        assert all(map(torch.equal, torch.autograd.grad(h.sum(), leaves[1:]), wanted))


@pytest.mark.parametrize("operator", ["linear_scan", "moment_filter"])
def test_a_reset_stops_nan_and_small_factors_do_not(operator, cut):
    def run(x):
        if operator == "linear_scan":
            return ops.linear_scan(torch.full((1,), 1e-20), x, reset=reset)[0]
        return ops.moment_filter(x, mu=0.5, s=1.0, beta=0.9, eps=0.01, reset=reset)[0]

    x, reset = torch.ones(9, 2, 1), torch.zeros(9, 2, dtype=torch.bool)
    reset[4, 1] = True
    y = run(x.requires_grad_())
    (dx,) = torch.autograd.grad(y, x, torch.where(torch.arange(9) < 8, 1, torch.nan).view(9, 1, 1).expand_as(y))
    assert dx[:, 0].isnan().all()
    assert torch.equal(dx[:, 1, 0].isnan(), torch.arange(9) >= 4)
    x.data[0] = torch.nan
    y = run(x)
    assert y[:, 0].isnan().all()
    assert torch.equal(y[:, 1, 0].isnan(), torch.arange(9) < 4)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # NumPy warns, a GPU does not
def test_no_product_that_overflows_is_taken_by_linear_scan_of_a_state_of_zero(cut):
    """The result is that of a single loop, although a product of factors, 1e30 to the power 11, overflows."""
    a, x = torch.full((2,), 1e30, requires_grad=True), torch.zeros(11, 1, 2)
    x[10, 0, 1] = 1.0
    h, _ = ops.linear_scan(a, x.requires_grad_())
    assert torch.equal(h, x)
    for gradient in torch.autograd.grad(h, (a, x), torch.zeros_like(h)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_moment_filter_computes_half_precision_in_float32():
    u, v0, q0, kwargs = filter_sample(6, 1, 3, dtype=F16)
    for x in (u, v0, q0):
        x.requires_grad_()
    upstream = torch.randn_like(u)

    def run(u):
        y, *state = filtered(ops.moment_filter, u, v0, q0, **kwargs)
        return y, *state, *torch.autograd.grad((y, *state), (u, v0, q0), (upstream.to(y), *state))

    for x, wide in zip(run(u), run(u.detach().float().requires_grad_()), strict=True):
        assert torch.equal(x, wide.to(x.dtype))


# ---- of similarity


def test_similarity_has_a_row_of_weights_for_some_samples_each():
    def call(x, weight, bias):
        return ops.similarity(x, weight=weight, bias=bias)

    leaves = [torch.randn(size, requires_grad=True) for size in ((2, 2, 4, 5), (2, 5), (2, 5))]
    R = torch.vmap(call)(*leaves)
    upstream = torch.randn_like(R)
    found = torch.autograd.grad(R, leaves, upstream)
    for k in range(2):
        alone = call(*(x[k] for x in leaves))
        assert torch.equal(R[k], alone)
        wanted = torch.autograd.grad(alone, leaves, upstream[k])
        torch.testing.assert_close([x[k] for x in found], [x[k] for x in wanted])


def test_no_subnormal_number_leaves_similarity():
    x = torch.randn(16, 9, 32) * (87.3 / 32) ** 0.5
    R, naive = ops.similarity(x, norm=None), reference.similarity(x, norm=None)
    tiny = torch.finfo(F32).tiny
    assert ((naive != 0) & (naive < tiny)).any()
    assert not ((R != 0) & (tiny > R)).any()


# ---- of gather_attention


@pytest.mark.parametrize("alignment", ["additive", "dot"])
def test_gather_attention_adds_up_a_memory_that_all_attend_to_in_pieces(alignment, monkeypatch):
    monkeypatch.setattr(gather_triton, "PIECE", 4)
    q, u, h, idx, v = gather_sample(1, 9, 3, 3, 6, dtype=F32)
    idx[..., 1:] = torch.where(idx[..., 1:] < 0, -1, 2)
    pieces = gather_triton._by_memory(idx, 3)[2]
    assert pieces.max() >= 4
    assert pieces.min() == 1
    agrees("gather_attention", ((q, u, h, idx, v), alignment))
    first, again = (
        gather_outputs_and_gradients(ops.gather_attention, ((q, u, h, idx, v), alignment)) for _ in range(2)
    )
    assert all(torch.equal(x, again[name]) for name, x in first.items())


@pytest.mark.parametrize(("scale", "dtype"), [(1e-4, F32), (1e-2, F32), (0.5, F64), (1.0, F32), (30.0, F32)])
def test_tanh_of_gather_attention_is_as_good_near_0_as_far_from_it(scale, dtype):
    """Uses u alone, with q = 0 and a v with one nonzero unit: the gradients of v and u then contain tanh and its
    derivative."""
    q, u, h, idx, v = gather_sample(1, 4, 5, 4, 64, dtype=dtype)
    agrees("gather_attention", ((0 * q, scale * u, h, idx, v), "additive"))


def test_gather_attention_without_a_memory_and_with_a_v_for_some_samples_each():
    q, u, h, idx, v = gather_sample(2, 3, 4, 2, 5, dtype=F32)
    agrees("gather_attention", ((q, u[:, :0], h[:, :0], torch.full_like(idx, -1), v), "additive"))
    q, u, h, idx, _ = gather_sample(4, 2, 4, 3, 6, dtype=F32)
    agrees("gather_attention", ((q, u, h, idx, torch.randn(2, 6)), "additive"))


def test_indices_of_gather_attention_that_are_no_memory_are_none():
    q, u, h, idx, v = gather_sample(1, 4, 3, 3, 5, dtype=F32)
    wild = torch.where(idx == 1, torch.tensor([2**31 - 1, -(2**31), 3] * 4).view(1, 4, 3), idx).int()
    tame = torch.where(idx == 1, -1, idx).int()
    for a, b in zip(*(gather_triton.forward(q, u, h, x, v[None], True, True, True) for x in (wild, tame)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # NumPy warns, a GPU does not
def test_nan_stays_where_gather_attention_attends_to_it():
    q, u, h, idx, v = gather_sample(1, 6, 5, 4, 3, dtype=F32)
    idx[0, 1:3], idx[0, 3:] = idx[0, 1:3].clamp_max(3), 4
    u[0, 4] = torch.nan
    out = ops.gather_attention(q, u, h, idx, v)
    assert torch.equal(out[0, 0], torch.zeros(3))
    assert out[0, 1:3].isfinite().all()
    assert out[0, 3:].isnan().all()
