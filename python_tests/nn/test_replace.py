"""replace and restore change the class of a module, and references to the module and its parts stay valid."""

import copy
import json
import pickle
import weakref

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize, prune

import rnnkern
import rnnkern.nn
from python_tests.samples import layers as table
from rnnkern import _extension, replace, restore

T, B, I, H = 5, 3, 4, 6  # noqa: E741

LAYERS = {
    "tanh": lambda **k: torch.nn.RNN(I, H, **k),
    "relu": lambda **k: torch.nn.RNN(I, H, 2, "relu", batch_first=True, **k),
    "lstm": lambda **k: torch.nn.LSTM(I, H, 2, bidirectional=True, **k),
    "lstm proj": lambda **k: torch.nn.LSTM(I, H, bias=False, proj_size=2, **k),
    "gru": lambda **k: torch.nn.GRU(I, H, 2, dropout=0.5, **k),
    "tanh cell": lambda **k: torch.nn.RNNCell(I, H, **k),
    "relu cell": lambda **k: torch.nn.RNNCell(I, H, nonlinearity="relu", **k),
    "lstm cell": lambda **k: torch.nn.LSTMCell(I, H, **k),
    "gru cell": lambda **k: torch.nn.GRUCell(I, H, bias=False, **k),
}
layers = pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS.keys())


class Model(torch.nn.Module):
    """Layers at several depths: one of them is registered twice, and one is a subclass of torch.nn's."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(I, I), torch.nn.LSTM(I, H))
        self.cells = torch.nn.ModuleList([torch.nn.GRUCell(H, H), torch.nn.RNNCell(H, H)])
        self.cells.append(self.cells[0])
        self.norm = torch.nn.LayerNorm(H)

    def forward(self, x):
        sequence, (h, _) = self.encoder(x)
        h = h[0]
        for cell in self.cells:
            h = cell(sequence[-1], self.norm(h))
        return h


def given(module, dtype=torch.float64):
    cell = isinstance(module, torch.nn.RNNCellBase)
    return torch.randn(*(B,) if cell else (T, B), I, dtype=dtype)


def results(module, x):
    """Output, and gradients of the parameters; dropout is the same in each call."""
    torch.manual_seed(1)
    return table.values_and_gradients(module, x)


def assert_same(actual, wanted):
    torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-12)


def ours(module):
    return type(module).__module__.startswith("rnnkern.nn")


# ---- what does not change


@layers
def test_one_layer_there_and_back(build):
    module = build(dtype=torch.float64)
    x, before, cls = given(module), dict(vars(module)), type(module)
    parameters = dict(module.named_parameters())
    wanted, spelled = results(module, x), repr(module)
    report = replace(module)
    assert report == ((("", cls, type(module)),), ())
    assert type(module) is getattr(rnnkern.nn, cls.__name__)
    assert_same(results(module, x), wanted)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(twin) is type(module)
        assert_same(results(twin, x), wanted)
        restore(twin)
        assert type(module) is not type(twin) is cls
        assert_same(results(twin, x), wanted)
    assert {n: id(p) for n, p in module.named_parameters()} == {n: id(p) for n, p in parameters.items()}
    assert repr(module).startswith(f"rnnkern.nn.{spelled[:-1]}")
    assert restore(module) == ((("", getattr(rnnkern.nn, cls.__name__), cls),), ())
    assert type(module) is cls
    assert repr(module) == spelled
    after = vars(module)
    assert after.keys() == before.keys()
    weights = {"_flat_weights", "_flat_weight_refs"}
    assert all(after[name] is before[name] for name in before.keys() - weights)
    for name in weights & before.keys():
        assert [id(w) for w in after[name]] == [id(w) for w in before[name]]
    assert table.same(results(module, x), wanted)


def test_a_model():
    model, x = Model().double(), torch.randn(T, B, I, dtype=torch.float64)
    held = dict(model.named_modules())
    wanted = results(model, x)
    report = replace(model)
    assert [r.name for r in report.replaced] == ["encoder.1", "cells.0", "cells.1"]
    assert report.left == ()
    assert [ours(m) for m in (model, model.encoder[1], *model.cells)] == [False, True, True, True, True]
    assert dict(model.named_modules()) == held
    assert model.cells[2] is model.cells[0]
    assert_same(results(model, x), wanted)
    restore(model)
    assert not any(map(ours, model.modules()))
    assert table.same(results(model, x), wanted)


def test_hooks_flags_and_buffers_stay():
    model = torch.nn.Sequential(torch.nn.LSTM(I, H, 2, dropout=0.9)).eval()
    lstm, seen = model[0], []
    lstm.weight_hh_l1.requires_grad_(False)
    lstm.register_buffer("scale", torch.ones(()))
    lstm.register_forward_pre_hook(lambda module, args: seen.append(("before", module)))
    lstm.register_forward_hook(lambda module, args, output: (output[0] * module.scale * 2, output[1]))
    lstm.register_full_backward_hook(lambda module, *gradients: seen.append(("backward", module)))
    lstm.register_state_dict_pre_hook(lambda module, *rest: seen.append(("saved", module)))
    x = torch.randn(T, B, I, requires_grad=True)
    wanted, names = model(x)[0], list(model.state_dict())
    for change in (replace, restore):
        change(model)
        seen.clear()
        output = model(x)[0]
        torch.testing.assert_close(output, wanted)
        output.sum().backward()
        assert list(model.state_dict()) == names
        assert seen == [("before", lstm), ("backward", lstm), ("saved", lstm)]
        assert lstm.weight_hh_l1.grad is None
        assert not lstm.training


def test_what_moved_in_between_is_what_torch_reads():
    lstm = torch.nn.LSTM(I, H)
    replace(lstm)
    lstm.double()
    old = weakref.ref(lstm.weight_hh_l0)
    lstm.weight_hh_l0 = torch.nn.Parameter(torch.zeros_like(lstm.weight_hh_l0))
    assert old() is None
    x = given(lstm)
    wanted = results(lstm, x)
    restore(lstm)
    assert_same(results(lstm, x), wanted)
    lstm.load_state_dict(torch.nn.LSTM(I, H).state_dict())
    assert [id(w) for w in lstm._flat_weights] == [id(p) for p in lstm.parameters()]


@pytest.mark.skipif(not _extension.available, reason=_extension.reason or "")
def test_a_compiled_model_takes_the_kernel():
    model = torch.nn.Sequential(torch.nn.Linear(I, I), torch.nn.GRU(I, H))
    x = torch.randn(T, B, I)
    compiled = torch.compile(model, backend="aot_eager")

    def entered():
        counts = json.loads(torch.ops.rnnkern.kernel_counts())
        return sum(n for kernel, n in counts.items() if kernel.startswith("recurrence/cpu/forward/gru/"))

    with torch.no_grad():
        wanted, before = compiled(x)[0], entered()
        replace(compiled)
        torch.testing.assert_close(compiled(x)[0], wanted)
        assert entered() == before + 1
        restore(compiled)
        torch.testing.assert_close(compiled(x)[0], wanted)
        assert entered() == before + 1


# ---- parametrized weights


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize("build", [LAYERS["lstm"], LAYERS["gru cell"]], ids=["lstm", "gru cell"])
def test_parametrized(build):
    module = build(dtype=torch.float64)
    name = next(n for n, _ in module.named_parameters() if "weight_hh" in n)
    parametrizations.orthogonal(module, name)
    parametrize.register_parametrization(module, name, Doubled())
    x, cls, twin = given(module), type(module), copy.deepcopy(module)
    assert type(twin) is cls
    wanted, parameters = results(module, x), list(map(id, module.parameters()))
    (replaced,) = replace(module).replaced
    assert replaced.new in type(module).__mro__
    assert parametrize.type_before_parametrizations(module) is replaced.new
    assert_same(results(module, x), wanted)
    assert list(map(id, module.parameters())) == parameters
    assert_same(results(copy.deepcopy(module), x), wanted)
    assert type(twin) is cls
    assert not issubclass(cls, replaced.new)
    restore(module)
    assert_same(results(copy.deepcopy(module), x), wanted)
    assert_same(results(module, x), wanted)
    replace(module)
    parametrize.remove_parametrizations(module, name)
    assert type(module) is replaced.new
    assert_same(results(module, x)[0], wanted[0])
    assert_same(results(twin, x), wanted)


@pytest.mark.parametrize("change", ["pruned", "weight_norm"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
def test_weights_that_hooks_compute(change):
    gru = torch.nn.GRU(I, H, dtype=torch.float64)
    if change == "pruned":
        prune.random_unstructured(gru, "weight_hh_l0", 0.5)
    else:
        torch.nn.utils.weight_norm(gru, "weight_hh_l0")
    x = given(gru)
    wanted = results(gru, x)
    for swap in (replace, restore):
        swap(gru)
        assert_same(results(gru, x), wanted)


# ---- layers that are not replaced


class Residual(torch.nn.LSTM):
    def forward(self, input, hx=None):
        output, hidden = super().forward(input, hx)
        return input + output, hidden


class OwnCell(torch.nn.RNNCellBase):
    def __init__(self):
        super().__init__(I, H, True, 1)


def with_own_forward(module):
    module.forward = lambda *args: module
    return module


LEFT = {
    "subclass": (lambda: Residual(I, I), "a subclass, which may compute something else"),
    "parametrized subclass": (
        lambda: parametrizations.orthogonal(Residual(I, I), "weight_hh_l0"),
        "a subclass, which may compute something else",
    ),
    "cell": (OwnCell, "a subclass, which may compute something else"),
    "forward": (lambda: with_own_forward(torch.nn.GRU(I, H)), "its forward was set on the instance"),
    "complex": (lambda: torch.nn.LSTM(I, H, dtype=torch.complex64), "its parameters are torch.complex64"),
    "quantized": (lambda: torch.ao.nn.quantized.dynamic.GRU(I, H), "quantized"),
    "quantizable": (lambda: torch.ao.nn.quantizable.LSTMCell(I, H), "quantized"),
    "scripted": (lambda: torch.jit.script(torch.nn.LSTM(I, H)), "in a scripted module"),
    "traced": (lambda: torch.jit.trace(torch.nn.GRUCell(I, H), torch.zeros(B, I)), "in a scripted module"),
    "ours": (lambda: rnnkern.nn.LSTM(I, H), "rnnkern's already"),
}


@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")  # for quantized tensors
@pytest.mark.parametrize(("build", "reason"), LEFT.values(), ids=LEFT.keys())
def test_what_is_left_is_named_with_its_reason(build, reason):
    layer = build()
    model, cls = torch.nn.Sequential(torch.nn.Linear(I, I), layer, torch.nn.GRUCell(I, H)), type(layer)
    report = replace(model)
    assert type(layer) is cls
    assert [r.name for r in report.replaced] == ["2"]
    assert [(left.name, left.reason) for left in report.left] == [("1", reason)]
    assert restore(model).replaced[-1].name == "2"


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: rnnkern.nn.LSTM(I, H, num_heads=2), "torch.nn has no num_heads=2"),
        (lambda: rnnkern.nn.LSTM(I, H, zoneout=(0.0, 0.1)), r"torch.nn has no zoneout=(0.0, 0.1)"),
        (lambda: rnnkern.nn.GRU(I, H, recurrent_dropout=0.5), "torch.nn has no recurrent_dropout=0.5"),
        (lambda: rnnkern.nn.LSTM(I, H, layer_norm=True), "torch.nn has no layer_norm=True"),
        (lambda: rnnkern.nn.LSTM(I, H, recurrent_grad_dropout=0.25), "torch.nn has no recurrent_grad_dropout=0.25"),
        (lambda: table.layer("RNN NAG"), "torch.nn has no filter=NAG(s=0.5, restart_every=4)"),
        (lambda: rnnkern.nn.GRU(I, H, reset_gate="before"), "torch.nn has no reset_gate='before'"),
        (lambda: rnnkern.nn.RNN(I, H, nonlinearity="modrelu"), "torch.nn has no nonlinearity='modrelu'"),
        (lambda: type("Own", (rnnkern.nn.LSTMCell,), {})(I, H), "a subclass, which may compute something else"),
        (lambda: with_own_forward(rnnkern.nn.GRU(I, H)), "its forward was set on the instance"),
    ],
)
def test_what_torch_cannot_have_back(build, reason):
    model = torch.nn.Sequential(build(), torch.nn.LSTM(I, H), rnnkern.nn.RNN(I, H, nonlinearity="relu"))
    cls = type(model[0])
    report = restore(model)
    assert type(model[0]) is cls
    assert [(left.name, left.reason) for left in report.left] == [("0", reason)]
    assert report.replaced == (("2", rnnkern.nn.RNN, torch.nn.RNN),)
    x = torch.randn(T, B, I)
    assert torch.isfinite(model[2](x)[0]).all()


@pytest.mark.parametrize("name", [name for name in table.NAMES if not hasattr(torch.nn, name)])
def test_what_torch_has_not_stays(name):
    model = torch.nn.Sequential(table.layer(name))
    cls = type(model[0])
    for swap in (replace, restore):
        assert swap(model).replaced == ()
        assert type(model[0]) is cls


# ---- the report


def test_a_report_reads_as_a_list():
    model = torch.nn.Sequential(torch.nn.LSTM(I, I), Residual(I, I))
    assert repr(replace(torch.nn.GRU(I, H))) == "(model): torch.nn.GRU -> rnnkern.nn.GRU"
    here = f"{__name__}.Residual"
    assert repr(replace(model)).splitlines() == [
        "0: torch.nn.LSTM -> rnnkern.nn.LSTM",
        f"1: {here} left: a subclass, which may compute something else",
    ]
    assert repr(replace(model)).splitlines()[0] == "0: rnnkern.nn.LSTM left: rnnkern's already"
    assert repr(restore(model)) == "0: rnnkern.nn.LSTM -> torch.nn.LSTM"
    assert repr(restore(model)) == repr(replace(torch.nn.Linear(I, H))) == "no recurrent layer"


@pytest.mark.parametrize("change", [replace, restore])
def test_only_modules(change):
    with pytest.raises(TypeError, match=f"{change.__name__}: `model` must be a torch.nn.Module, got list"):
        change([torch.nn.LSTM(I, H)])


# ---- explain


@pytest.fixture
def no_kernels(monkeypatch):
    why = _extension.missing("there is no compiler here", "find one")
    monkeypatch.setattr(_extension, "available", False)
    monkeypatch.setattr(_extension, "reason", why)


@layers
def test_a_layer_that_would_run_in_plain_pytorch_is_left(build, no_kernels):
    module = build()
    cls = type(module)
    report = replace(module)
    assert type(module) is cls
    assert report.replaced == ()
    (left,) = report.left
    assert "there is no compiler here" in left.reason
    assert left.reason.endswith("force=True replaces it anyway")
    assert len(replace(module, force=True).replaced) == 1
    assert ours(module)


def test_a_layer_without_a_device_is_replaced():
    module = torch.nn.LSTM(I, H, device="meta")
    assert len(replace(module).replaced) == 1


def test_explain_walks_a_model():
    model = Model()
    names = ["encoder.1", "cells.0", "cells.1"]
    by_torch = rnnkern.explain(model)
    assert list(by_torch) == names
    assert {choice.implementation for choices in by_torch.values() for choice in choices} == {"torch.nn"}
    replace(model)
    served = [("cpu", "the cpu kernel serves this call")]
    assert rnnkern.explain(model) == dict.fromkeys(names, served)
    with rnnkern.use("reference"):
        forced = rnnkern.explain(model)
    assert forced == {name: [("reference", "forced by use('reference')")] for name in names}
    assert rnnkern.explain(torch.nn.Linear(2, 2)) == {}
    assert rnnkern.explain(model.encoder[1]) == {"": served}
    assert rnnkern.explain(model.encoder[1], torch.randn(T, B, I)) == served
    with pytest.raises(TypeError, match="explain: `op` must be"):
        rnnkern.explain(None)


def test_a_printed_model_tells_whose_its_layers_are():
    model = torch.nn.Sequential(torch.nn.LSTM(I, H), torch.nn.GRUCell(I, H))
    parametrizations.weight_norm(model[1], "weight_hh")
    replace(model)
    assert "(0): rnnkern.nn.LSTM(4, 6)" in str(model)
    assert "(1): rnnkern.nn.ParametrizedGRUCell(" in str(model)
