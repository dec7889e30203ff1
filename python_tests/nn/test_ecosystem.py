"""What other tools make of the layers: the FLOP counter, torch.fx, quantization, Opacus."""

import copy

import pytest
import torch
from torch.ao.quantization import quantize_dynamic
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils._pytree import tree_leaves

from python_tests.ops.test_flops import flops
from python_tests.samples import layers as table
from rnnkern import _extension, nn

if not _extension.available:
    pytest.skip(f"no compiled part: {_extension.reason}", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")  # in torch.ao.quantization
T, B, I, H = 5, 3, 4, 8  # noqa: E741


def packed_input(**options):
    """Packed data that is a leaf."""
    packed = pack_sequence([torch.randn(n, I) for n in (T, T - 1, 1)])
    return packed._replace(data=torch.randn(packed.data.shape, **options))


# ---- FLOPs

OPTIONS = ({"bias": False, "batch_first": True}, {"num_layers": 2}, {"num_layers": 2, "bidirectional": True})
COUNTED = [
    *((name, options, form) for name in ("RNN", "LSTM", "GRU") for options in OPTIONS for form in ("padded", "packed")),
    *(("LSTM", {"proj_size": 2, "bidirectional": True}, form) for form in ("padded", "packed")),
    *((f"{name}Cell", {}, "padded") for name in ("RNN", "LSTM", "GRU")),
]
FLOAT64 = {"dtype": torch.float64}
"""In float32 on a CPU, oneDNN computes torch.nn.LSTM, and PyTorch counts none of it."""


def both(name, **options):
    return [getattr(package, name)(I, H, **options, **FLOAT64) for package in (nn, torch.nn)]


def train(layer, *args):
    output = layer(*args)
    output = output[0] if isinstance(output, tuple) and not isinstance(output, PackedSequence) else output
    (output.data if isinstance(output, PackedSequence) else output).sum().backward()


def initial_state(layer):
    rows = (layer.num_layers * (1 + layer.bidirectional),) if isinstance(layer, torch.nn.RNNBase) else ()
    sizes = (getattr(layer, "proj_size", 0) or H, H)
    h, c = (torch.randn(*rows, B, n, requires_grad=True, **FLOAT64) for n in sizes)
    return (h, c) if "LSTM" in type(layer).__name__ else h


@pytest.mark.parametrize("needs_x", [False, True])
@pytest.mark.parametrize(("name", "options", "form"), COUNTED, ids=str)
def test_flops_are_those_of_torch_nn(name, options, form, needs_x):
    layers = both(name, **options)
    shape = (B, I) if name.endswith("Cell") else (B, T, I) if options.get("batch_first") else (T, B, I)
    how = {"requires_grad": needs_x, **FLOAT64}
    x, state = packed_input(**how) if form == "packed" else torch.randn(shape, **how), initial_state(layers[0])
    for run in (lambda layer: layer(x, state), lambda layer: train(layer, x, state)):
        ours, theirs = (flops(lambda run=run, layer=layer: run(layer)) for layer in layers)
        assert ours == theirs > 0


# ---- torch.fx

OF_BATCH_FIRST = ("ContextNorm", "Similarity", "CoRelNet", "ESBN")


class Model(torch.nn.Module):
    def __init__(self, layer, call=lambda layer, x: layer(2 * x)):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x):
        return self.call(self.layer, x)


def check_trace(model, x, tracer=torch.fx.Tracer):
    graph = tracer().trace(model)
    assert {node.target for node in graph.nodes if node.op == "call_module"} == {"layer"}
    found = torch.fx.GraphModule(model, graph)(x)
    torch.testing.assert_close(tree_leaves(found), tree_leaves(model(x)), rtol=0, atol=0)


@pytest.mark.parametrize("name", table.NAMES)
def test_every_layer_is_a_leaf_of_a_trace(name):
    rows = (B,) if name.endswith(("Cell", "ODE")) else (B, T) if name in OF_BATCH_FIRST else (T, B)
    check_trace(Model(table.layer(name)), torch.randn(*rows, I))


TRACED = {
    "state": (lambda: nn.GRU(I, H), lambda layer, x: layer(x, hx=x.new_ones(1, B, H))),
    "states": (lambda: nn.LSTM(I, H), lambda layer, x: layer(x, layer(x)[1])),
    "state alone": (lambda: nn.RNNCell(I, I), lambda layer, x: layer(torch.ones(B, I), x[0])),
    "reset": (lambda: nn.RelRNN(I, H), lambda layer, x: layer(x, None, x[..., 0] > 0)),
    "gaps": (lambda: nn.ContinuousRNN(I, H), lambda layer, x: layer(x, gaps=x[..., 0].abs())),
    "path": (lambda: nn.NeuralODE(I, H, steps=2), lambda layer, x: layer(x[0], return_path=True)),
    "packed": (lambda: nn.LSTM(I, H, bidirectional=True), lambda layer, x: layer(x)),
    "parametrized": (lambda: weight_norm(nn.GRU(I, H), "weight_hh_l0"), lambda layer, x: layer(x)),
}
"""A layer and a call of it."""


@pytest.mark.parametrize("name", TRACED)
def test_a_trace_passes_on_all_arguments(name):
    build, call = TRACED[name]
    check_trace(Model(build(), call), packed_input() if name == "packed" else torch.randn(T, B, I))


class Output(nn.GRU):
    def forward(self, x):
        return super().forward(x)[0]


def hooked(layer):
    layer.register_forward_hook(lambda layer, args, results: None)
    return layer


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: nn.GRU(I, H), "GRU: torch.fx cannot trace this call: trace a model that contains the layer"),
        (lambda: Model(hooked(nn.GRU(I, H))), "its forward hooks would run twice; use .*Tracer whose is_leaf_module"),
        (lambda: Model(Output(I, H)), "Output: .*: its forward is not that of rnnkern; use .* whose is_leaf_module"),
    ],
)
def test_what_a_trace_would_get_wrong_is_refused_and_what_the_message_names_works(build, said):
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return isinstance(module, nn.GRU)

    model = build()
    with pytest.raises(NotImplementedError, match=said):
        torch.fx.symbolic_trace(model)
    check_trace(model if isinstance(model, Model) else Model(model), torch.randn(T, B, I), Tracer)


# ---- quantization

int8 = pytest.mark.skipif(not torch.backends.quantized.supported_engines, reason="PyTorch has no engine for int8")


def quantized(model, *classes):
    return quantize_dynamic(model.eval(), set(classes), dtype=torch.qint8)


RESTORE = r"stays in floating point: only torch.nn's layers .*; call rnnkern.restore\(model\) first"
LEFT = {
    "lstm": (lambda: nn.LSTM(I, H), f"rnnkern.nn.LSTM {RESTORE}"),
    "cell": (lambda: nn.GRUCell(I, H), f"rnnkern.nn.GRUCell {RESTORE}"),
    "parametrized": (lambda: weight_norm(nn.GRU(I, H), "weight_hh_l0"), f"rnnkern.nn.GRU {RESTORE}"),
    "lru": (lambda: nn.LRU(I, H), "rnnkern.nn.LRU stays in floating point: torch.nn has no such layer to quantize"),
    "one's own": (lambda: Output(I, H), "Output stays in floating point: torch.nn has no such layer to quantize"),
}
"""A layer and what it says."""


@int8
@pytest.mark.parametrize("name", LEFT)
def test_a_layer_that_is_not_quantized_says_so(name):
    build, said = LEFT[name]
    model = torch.nn.Sequential(torch.nn.Linear(I, I), build())
    with pytest.warns(UserWarning, match=f"^{said}$") as warned:
        found = quantized(model, torch.nn.Linear, torch.nn.LSTM)
    assert [w.filename for w in warned if "stays in floating point" in str(w.message)] == [__file__]
    assert type(found[1]) is type(model[1])
    assert not hasattr(found[1], "qconfig")
    assert not hasattr(model[1], "qconfig")


def test_a_copy_of_a_layer_keeps_how_it_was_to_be_quantized():
    layer = nn.LSTM(I, H)
    with pytest.warns(UserWarning, match=RESTORE):
        layer.qconfig = None
    twin = copy.deepcopy(layer)
    assert twin.qconfig is None
    assert twin.state_dict().keys() == layer.state_dict().keys()


@int8
@pytest.mark.parametrize("build", [lambda: nn.ESBN(I, 2), lambda: nn.CoRelNet(I, T, 2, rule="asymmetric")])
def test_a_relational_model_works_with_quantized_linear_layers(build):
    model, x = build(), torch.randn(B, T, I)
    found = quantized(model, torch.nn.Linear)
    assert any(type(module).__module__.startswith("torch.ao.nn.quantized") for module in found.modules())
    torch.testing.assert_close(found(x), model(x), rtol=0, atol=0.1)


# ---- Opacus


class Classifier(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, torch.nn.Linear(H, 2)

    def forward(self, x):
        output = self.layer(x)
        return self.head((output[0] if isinstance(output, tuple) else output)[:, -1])


@pytest.mark.filterwarnings("ignore")
def test_opacus_takes_a_layer_that_returns_its_output_alone():
    opacus = pytest.importorskip("opacus", reason="Opacus is not installed")
    model, x = Classifier(Output(I, H, batch_first=True)), torch.randn(B, T, I)
    names = [name for name, _ in model.named_parameters()]
    wanted = [torch.autograd.grad(model(one[None]).square().sum(), list(model.parameters())) for one in x]
    assert opacus.validators.ModuleValidator.validate(model) == []
    opacus.GradSampleModule(model, loss_reduction="sum")(x).square().sum().backward()
    for name, p, *per_sample in zip(names, model.parameters(), *wanted, strict=True):
        torch.testing.assert_close(p.grad_sample, torch.stack(per_sample), msg=lambda m, name=name: f"{name}: {m}")
