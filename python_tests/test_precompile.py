"""rnnkern.precompile over modules and operators: what it compiles, what it refuses, and what explain says of it."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import rnnkern
from rnnkern import _compiler, _extension, _precompile, ops
from rnnkern._compiler import CompilationError

pytestmark = [
    pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}"),
    pytest.mark.skipif(_compiler.nvrtc() is None, reason=f"{_compiler.LIBRARY} was not found"),
]
H100 = _precompile.FACTS["sm_90"]
precompile = rnnkern.precompile


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """An empty cache, in a process that has compiled nothing."""
    monkeypatch.setenv("RNNKERN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_compiler, "_in_memory", {})
    return tmp_path


@pytest.fixture
def compiled(monkeypatch):
    """The types that would be compiled from now on; compilation is replaced."""
    found = []

    def compile_now(program):
        found.append(program.type)
        return b"a cubin of " + program.type.encode()

    monkeypatch.setattr(_compiler, "compile_now", compile_now)
    return found


def sequences(batch=2, hidden=64, **options):
    """Arguments of a tanh recurrence."""
    make = lambda *sizes: torch.zeros(*sizes, **options)  # noqa: E731
    return ("tanh", make(3, batch, hidden), make(hidden, hidden), (make(batch, hidden),))


@pytest.fixture
def h100(monkeypatch):
    monkeypatch.setattr(_extension, "cuda_refusal", lambda device: None)
    monkeypatch.setattr(_extension, "device_facts", lambda device: H100)


# ---- what is compiled


def test_of_an_operator_and_its_arguments(cache, capfd):
    u, h0, bias, angles = torch.zeros(3, 2, 8), torch.zeros(2, 8), torch.zeros(8), torch.zeros(2, 4)
    args = (ops.givens_recurrence, u, angles, h0, bias)
    assert precompile(*args, arch="sm_80") == 4
    assert "rnnkern: compiled   4 of 4 kernels |##############################| " in capfd.readouterr().err
    names = sorted(path.name.partition("-")[0] for path in cache.iterdir())
    each = ("BackwardKernel_float_1_2", "ForwardKernel_float_1_2", "SumKernel_float", "TurnKernel_float")
    assert names == [f"givens_{name}" for name in each]
    assert precompile(*args, arch="sm_80") == 0
    assert capfd.readouterr().err == ""
    assert all(_compiler._read(path).startswith(b"\x7fELF") for path in cache.iterdir())


def test_of_a_model(compiled):
    model = torch.nn.Sequential(rnnkern.nn.LSTM(8, 64), torch.nn.Linear(64, 8), rnnkern.nn.RNN(8, 300))
    assert precompile(model, arch="sm_90") == len(compiled) == len(set(compiled))
    assert "rnnkern::BlockBackwardKernel<rnnkern::Lstm, float, 64>" in compiled
    assert any("ClusterForwardKernel<rnnkern::Tanh" in type for type in compiled)  # the kernel for few sequences
    assert precompile(rnnkern.nn.LSTM(9, 60, num_layers=2), arch="sm_90") == 0, "sizes do not matter up to 64"


RECURRENT = (
    lambda: rnnkern.nn.RNN(5, 8, nonlinearity="modrelu"),
    lambda: rnnkern.nn.LSTM(5, 8, proj_size=3, bidirectional=True),
    lambda: rnnkern.nn.GRU(5, 8, layer_norm=True),
    lambda: rnnkern.nn.LSTMCell(5, 8),
    lambda: rnnkern.nn.RelRNN(5, 8),
    lambda: rnnkern.nn.EURNN(5, 8),
    lambda: rnnkern.nn.SABLSTM(5, 8),
)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("make", RECURRENT, ids=lambda make: type(make()).__name__)
def test_every_kind_of_module_can_be_asked(make, arch, compiled):
    precompile(make(), arch=arch)
    assert compiled or "SAB" in type(make()).__name__
    assert ("rnnkern::cuda::AloneKernel" in compiled) == (arch == "sm_90" and bool(compiled))


def test_a_dtype_in_place_of_the_parameters_own_and_tf32(compiled):
    """TF32 is a setting that may change between calls, so kernels with and without it are compiled."""
    precompile(rnnkern.nn.GRU(8, 64), arch="sm_90", dtype=torch.bfloat16)
    assert "rnnkern::BlockForwardKernel<rnnkern::Gru, rnnkern::device::bfloat16, 64>" in compiled
    assert not any("float, 64>" in type for type in compiled)
    precompile(ops.recurrence, *sequences(hidden=256), arch="sm_90")
    for what in ("float", "rnnkern::device::tfloat32"):
        assert f"rnnkern::ClusterForwardKernel<rnnkern::Tanh, {what}, 256>" in compiled


def test_what_does_not_compile_raises(monkeypatch):
    def compile_now(program):
        raise CompilationError("it is wrong")

    monkeypatch.setattr(_compiler, "compile_now", compile_now)
    with pytest.raises(RuntimeError, match="it is wrong"):
        precompile(ops.recurrence, *sequences(), arch="sm_90")


def test_on_a_device_kernels_are_loaded_too(compiled, monkeypatch, h100):
    loaded = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.ops.rnnkern, "load_kernel", lambda *args: loaded.append(args))
    assert precompile(ops.recurrence, *sequences()) == len(compiled)
    assert sorted(type for _, type, _ in loaded) == sorted(compiled)
    assert {index for *_, index in loaded} == {1}
    assert precompile(ops.recurrence, *sequences(), device="cuda:0") == 0
    assert [index for *_, index in loaded].count(0) == len(compiled)


# ---- errors


LSTM = rnnkern.nn.LSTM


@pytest.mark.parametrize(
    ("model", "target", "said"),
    [
        (LSTM, {"arch": "sm_90"}, "`model_or_op` must be a module or an operator"),
        (torch.tanh, {"arch": "sm_90"}, "`model_or_op` must be a module or an operator"),
        (LSTM(8, 8), {"arch": "sm_70"}, r"`arch` must be one of sm_80, .*, got 'sm_70'"),
        (LSTM(8, 8), {"arch": "sm_90", "device": "cuda"}, "only one of `device` and `arch` can be given, got both"),
        (LSTM(8, 8), {"device": "cpu"}, "`device` must be a CUDA device, got cpu"),
    ],
)
def test_wrong_arguments(model, target, said):
    with pytest.raises((TypeError, ValueError), match=said):
        precompile(model, **target)


@pytest.mark.parametrize(
    ("module", "name", "value", "said"),
    [
        (torch.cuda, "is_available", lambda: False, "no CUDA device found; pass an architecture instead"),
        (_extension, "cuda_refusal", lambda device: "it is old", "precompile: it is old"),
        (_compiler, "nvrtc", lambda: None, r"NVRTC \(libnvrtc.so.13\) was not found; `pip install 'rnnkern\[cuda\]'`"),
        (_extension, "available", False, "precompile: it was left out"),
    ],
)
def test_without_what_it_needs(module, name, value, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(_extension, "cuda_refusal", lambda device: None)
    monkeypatch.setattr(_extension, "reason", "it was left out")
    monkeypatch.setattr(module, name, value)
    target = {"arch": "sm_90"} if name in ("nvrtc", "available") else {}
    with pytest.raises(RuntimeError, match=said):
        precompile(rnnkern.nn.GRU(8, 64), **target)


# ---- explain


def test_explain_says_what_is_still_to_be_compiled(compiled, monkeypatch, h100):
    def explained():
        with FakeTensorMode():
            return ops.explain(ops.recurrence, *sequences(device="cuda"))

    assert explained().implementation == "cuda"
    assert "6 of 6 kernels are not compiled yet; compiler: NVRTC" in explained().reason
    with monkeypatch.context() as patch:
        patch.setattr(_compiler, "nvrtc", lambda: None)
        assert "6 of 6 kernels are not compiled yet; libnvrtc.so.13 was not found" in explained().reason
    assert compiled == []
    precompile(ops.recurrence, *sequences(), arch="sm_90")
    assert explained().reason.endswith("compiled already")
