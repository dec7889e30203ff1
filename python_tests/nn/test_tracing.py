"""TorchScript's tracer, which torch.onnx.export uses too: tracing works, or the error names an alternative."""

import io

import pytest
import torch

import rnnkern.nn
from python_tests.samples import layers as table
from rnnkern import _extension

if not _extension.available:
    pytest.skip(f"no compiled part: {_extension.reason}", allow_module_level=True)

T, B, I, H = 5, 2, table.INPUT_SIZE, 8  # noqa: E741
EXPORTS = {
    "export": lambda layer, *args: torch.onnx.export(layer, args, io.BytesIO(), dynamo=False),
    "export without gradients": lambda layer, *args: torch.no_grad()(EXPORTS["export"])(layer, *args),
}

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


LAYERS = table.USED | {"RNN": {"bidirectional": True}}


@pytest.fixture(params=LAYERS)
def layer(request):
    return table.layer(request.param, **LAYERS[request.param])


def test_a_trace_without_gradients_is_for_any_length_and_batch(layer):
    with torch.no_grad():
        traced = torch.jit.trace(layer, torch.randn(T, B, I))
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer)
        buffer.seek(0)
        loaded = torch.jit.load(buffer)
        for p in layer.parameters():
            p.add_(0.1)  # changes the layer only: the loaded module has copies
        for shape in ((T, B, I), (T + 2, B + 1, I)):
            x = torch.randn(shape)
            torch.testing.assert_close(traced(x)[0], layer(x)[0])
            assert not torch.equal(loaded(x)[0], traced(x)[0])


def test_a_trace_with_gradients_is_refused(layer):
    with pytest.raises(NotImplementedError, match=r"trace under torch.no_grad\(\), or call rnnkern.restore\(model\)"):
        torch.jit.trace(layer, torch.randn(T, B, I))


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
def test_an_export_to_onnx_is_refused(layer, export):
    with pytest.raises(NotImplementedError, match=r"ONNX .* call rnnkern.restore\(model\) first"):
        export(layer, torch.randn(T, B, I))


def test_a_step_to_onnx_is_refused():
    """A single step in inference uses another path to the kernel."""
    layer, x = rnnkern.nn.GRU(I, H), torch.randn(1, B, I)
    with pytest.raises(NotImplementedError, match=r"call rnnkern.restore\(model\) first"):
        EXPORTS["export without gradients"](layer, x, torch.zeros(1, B, H))
    cell = rnnkern.nn.GRUCell(I, H)
    with pytest.raises(NotImplementedError, match=r"call rnnkern.restore\(model\) first"):
        EXPORTS["export without gradients"](cell, x[0], torch.zeros(B, H))


@pytest.mark.parametrize("forced", [None, "reference"])
def test_what_the_messages_name_works(forced):
    layer, x = rnnkern.nn.LSTM(I, H), torch.randn(T, B, I)
    wanted = layer(x)[0]
    if forced:
        with rnnkern.use(forced):
            traced = torch.jit.trace(layer, x)
    else:
        rnnkern.restore(layer)
        traced = torch.jit.trace(layer, x)
    torch.testing.assert_close(traced(x)[0], wanted)
    assert traced(x)[0].requires_grad
