"""Directions and layers run concurrently; nothing else about a module changes."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import rnnkern.nn
from rnnkern import _extension
from rnnkern.ops import explain

if not _extension.available:
    pytest.skip(f"no compiled part: {_extension.reason}", allow_module_level=True)

MODULES = {
    "lstm": lambda **k: rnnkern.nn.LSTM(6, 40, 2, bidirectional=True, **k),
    "projected": lambda **k: rnnkern.nn.LSTM(6, 40, 2, bidirectional=True, proj_size=24, **k),
    "gru": lambda **k: rnnkern.nn.GRU(6, 40, 2, bidirectional=True, **k),
    "heads": lambda **k: rnnkern.nn.GRU(6, 40, 2, bidirectional=True, bias=False, num_heads=5, **k),
    "modrelu": lambda **k: rnnkern.nn.RNN(6, 40, 2, bidirectional=True, nonlinearity="modrelu", **k),
    "lstm layers": lambda **k: rnnkern.nn.LSTM(6, 96, 4, **k),
    "gru layers": lambda **k: rnnkern.nn.GRU(6, 96, 4, **k),
    "projected layers": lambda **k: rnnkern.nn.LSTM(6, 96, 4, proj_size=24, **k),
}


def side_by_side(module, x):
    said = ("side by side with the other direction", "in one call with the other layer")
    return [choice.reason.endswith(said) for choice in explain(module, x)]


def results(module, x, reset):
    """Output, final states and the gradient of the input."""
    output, hidden = module(x, reset=reset)
    output, leaf = (y.data if isinstance(y, PackedSequence) else y for y in (output, x))
    hidden = hidden if isinstance(hidden, tuple) else (hidden,)
    loss = output.sin().sum() + sum(s.square().sum() for s in hidden)
    return output, *hidden, torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("batch", [1, 5, 20])
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_bits_do_not_depend_on_the_threads(name, batch, packed, dtype):
    module = MODULES[name](batch_first=not packed)
    if packed:
        lengths = [80 - k for k in range(batch)]
        x = pack_sequence([torch.randn(n, 6) for n in lengths])
        x = x._replace(data=x.data.requires_grad_())
        reset = torch.rand(80, batch) < 0.1
    else:
        x, reset = torch.randn(batch, 80, 6, requires_grad=True), torch.rand(batch, 80) < 0.1
    wanted = None
    for count in (1, 2, 3, 4):
        torch.set_num_threads(count)  # until the fixture of all these tests sets it back
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            assert side_by_side(module, x) == [count > 1] * 4
            actual = results(module, x, reset)
        wanted = wanted or actual
        assert all(map(torch.equal, actual, wanted))


def test_layers_with_dropout_between_run_one_by_one():
    torch.set_num_threads(2)
    module, x = rnnkern.nn.GRU(6, 40, 3, dropout=0.5), torch.randn(40, 1, 6)
    assert side_by_side(module, x) == [False] * 3
    assert side_by_side(module.eval(), x) == [True, True, False]
