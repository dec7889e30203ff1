"""The input projection agrees with torch.nn.functional.linear whichever product serves it, derivatives too."""

import pytest
import torch
import torch.nn.functional as F

import rnnkern.nn
from rnnkern.ops import projection
from rnnkern.ops.projection import project
from rnnkern.testing import assert_close

ROWS, IN, OUT = (16, 8), 192, 200  # enough work for oneDNN


@pytest.fixture
def served(monkeypatch):
    """Whether calls took oneDNN, in order."""
    seen = []
    original = projection._onednn_serves
    monkeypatch.setattr(projection, "_onednn_serves", lambda *args: seen.append(original(*args)) or seen[-1])
    return seen


def arguments(bias=True, dtype=torch.float32):
    tensors = [torch.randn(*ROWS, IN), torch.randn(OUT, IN) / IN**0.5, torch.randn(OUT) if bias else None]
    return [t if t is None else t.to(dtype).requires_grad_() for t in tensors]


def everything(function, tensors):
    leaves = [t for t in tensors if t is not None]
    y = function(*tensors)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y.dtype)
    first = torch.autograd.grad(y, leaves, upstream, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first[:2]), leaves[:2])
    return [y, *first, *second]


@pytest.mark.parametrize("bias", [True, False])
def test_values_and_two_derivatives(bias, served):
    tensors = arguments(bias)
    double = [t if t is None else t.detach().double().requires_grad_() for t in tensors]
    actual = everything(project, tensors)
    assert served == [projection.available()]
    for a, naive, truth in zip(actual, everything(F.linear, tensors), everything(F.linear, double), strict=True):
        assert_close(a, naive, truth)


def test_without_a_graph_gradients_are_the_same():
    tensors = arguments()
    y = torch.randn(*ROWS, OUT)
    plain = torch.autograd.grad(project(*tensors), tensors, y)
    graph = torch.autograd.grad(project(*tensors), tensors, y, create_graph=True)
    torch.testing.assert_close(plain, tuple(g.detach() for g in graph), rtol=1e-4, atol=1e-4)


def test_layouts_do_not_matter(served):
    x, weight, bias = (t.detach() for t in arguments())
    wanted = F.linear(x, weight, bias)
    strided = x.transpose(0, 2).contiguous().transpose(0, 2)
    assert not strided.is_contiguous()
    torch.testing.assert_close(project(strided, weight.t().contiguous().t(), bias), wanted, rtol=1e-4, atol=1e-4)
    expanded = project(x[:1].expand_as(x), weight, bias)
    torch.testing.assert_close(expanded, wanted[:1].expand_as(wanted), rtol=1e-4, atol=1e-4)
    assert served == [projection.available()] * 2


def test_frozen_tensors_get_no_gradient():
    x, weight, bias = arguments()
    weight.requires_grad_(False)
    project(x, weight, bias).sum().backward()
    assert weight.grad is None
    torch.testing.assert_close(bias.grad, torch.full((OUT,), float(x[..., 0].numel())))
    assert x.grad.abs().max() > 0


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_what_onednn_does_not_serve_takes_linear(served):
    x, weight, bias = (t.detach() for t in arguments())
    project(x[:1], weight, bias)  # little work
    project(x.double(), weight.double(), bias.double())
    project(x.bfloat16(), weight.bfloat16(), bias.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert project(x, weight, bias).dtype == torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False):
        project(x, weight, bias)
    _, tangent = torch.func.jvp(lambda x: project(x, weight, bias), (x,), (x,))
    torch.testing.assert_close(tangent, F.linear(x, weight), rtol=1e-4, atol=1e-4)
    assert served == [False] * 6


def test_compiled_and_mapped_calls_take_linear():
    x, weight, bias = (t.detach() for t in arguments())
    wanted = F.linear(x, weight, bias)
    compiled = torch.compile(project, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, weight, bias), wanted)
    mapped = torch.vmap(project, in_dims=(1, None, None), out_dims=1)
    torch.testing.assert_close(mapped(x, weight, bias), wanted, rtol=1e-4, atol=1e-4)


def test_modules_project_so(served):
    rnnkern.nn.LSTM(IN, OUT // 4)(torch.randn(*ROWS, IN))
    assert served == [projection.available()]
