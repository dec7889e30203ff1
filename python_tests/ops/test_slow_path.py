"""A call that runs the reference because a kernel is missing warns once, and the warning names a remedy."""

import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode

import rnnkern
from rnnkern import PerformanceWarning, _compiler, _extension, ops
from rnnkern.ops import dispatch
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS

u, R, h0 = torch.zeros(3, 2, 4), torch.zeros(4, 4), torch.zeros(2, 4)


def run():
    return ops.recurrence("tanh", u, R, (h0,))


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(dispatch, "_said", set())


@pytest.fixture
def no_kernels(monkeypatch):
    monkeypatch.setattr(_extension, "available", False)
    monkeypatch.setattr(_extension, "reason", _extension.missing("nothing was compiled", "find a compiler"))


def warned(call):
    """The messages of the warnings of a call."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        call()
    assert all(w.category is PerformanceWarning for w in given)
    return [str(w.message) for w in given]


@pytest.mark.usefixtures("no_kernels")
def test_the_first_call_warns_and_no_other():
    (message,) = warned(run)
    assert message == (
        "recurrence runs in plain PyTorch, many times slower than rnnkern's kernel: nothing was compiled. To fix this: "
        "find a compiler. To silence this warning, call inside `with rnnkern.use('reference')`."
    )
    assert warned(run) == []
    assert warned(lambda: ops.skew_exp(R)) == []  # no second warning for the same reason


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(
    "call",
    [
        lambda: rnnkern.nn.GRU(4, 4)(u),
        lambda: ops.skew_exp(R),
        lambda: ops.linear_scan(torch.ones(4), u, h0),
        lambda: rnnkern.nn.SABLSTM(4, 4)(u),
        lambda: rnnkern.nn.EURNN(4, 4)(u),
    ],
)
def test_every_operator_warns_where_the_caller_calls(call):
    with pytest.warns(PerformanceWarning, match="nothing was compiled") as given:
        call()
    (warning,) = given
    assert warning.filename == __file__


@pytest.mark.usefixtures("no_kernels")
def test_what_asks_or_chooses_the_reference_does_not_warn():
    with rnnkern.use("reference"):
        assert warned(run) == []
    assert warned(lambda: ops.explain(ops.recurrence, "tanh", u, R, (h0,))) == []
    assert warned(lambda: rnnkern.explain(rnnkern.nn.GRU(4, 4))) == []
    assert warned(lambda: rnnkern.replace(torch.nn.GRU(4, 4))) == []
    assert len(warned(run)) == 1


def test_what_no_installation_serves_does_not_warn(monkeypatch):
    monkeypatch.delitem(KERNEL_CELLS, "tanh")
    assert warned(run) == []
    assert warned(lambda: ops.givens_product(torch.zeros(1, 2), phases=torch.zeros(1, 2))) == []
    assert warned(lambda: ops.recurrence("tanh", u.to("meta"), R.to("meta"), (h0.to("meta"),))) == []


@pytest.mark.usefixtures("no_kernels")
def test_compiled_code_warns_once():
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    assert len(warned(compiled)) == 1
    torch.compiler.reset()
    assert warned(compiled) == []


@pytest.mark.parametrize(
    ("version", "remedy"), [("12.8", "install a PyTorch built with CUDA 13"), ("13.0", "pip install 'rnnkern[cuda]'")]
)
def test_a_cuda_tensor_without_its_kernel(version, remedy, monkeypatch, tmp_path):
    monkeypatch.setenv("RNNKERN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_compiler, "nvrtc", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(_extension, "_cuda_refusal", _extension._cuda_refusal.__wrapped__)  # without its cache
    monkeypatch.setattr(rnnkern.reference, "recurrence", lambda *_, **__: None)  # would need a device
    with FakeTensorMode():
        x, weight, state = (torch.empty(t.shape, device="cuda") for t in (u, R, h0))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
        (message,) = warned(lambda: ops.recurrence("tanh", x, weight, (state,)))
        assert remedy in message
        assert warned(lambda: ops.recurrence("tanh", x, weight, (state,))) == []


def test_every_reason_for_no_compiled_part_has_a_remedy(monkeypatch, tmp_path):
    reasons = []
    with monkeypatch.context() as old:
        old.setattr(torch, "__version__", "2.9.1")
        reasons.append(_extension._load())
    monkeypatch.setattr(_extension, "LIBRARY", tmp_path / "_C.abi3.so")
    reasons.append(_extension._load())
    _extension.LIBRARY.write_bytes(b"no library")
    reasons.append(_extension._load())
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(_extension, "reason", None)
    reasons.append(_extension.triton_refusal())
    remedies = ("install torch 2.11", "install a C++20 compiler", "reinstall rnnkern", "pip install triton")
    for why, remedy in zip(reasons, remedies, strict=True):
        assert _extension.remedies[why].startswith(remedy)
