"""A bidirectional layer runs its directions side by side; nothing else about it changes."""

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
}


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


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
def test_the_bits_do_not_depend_on_the_threads(name, batch, packed, threads):
    module = MODULES[name](batch_first=not packed)
    if packed:
        lengths = [30 - k for k in range(batch)]
        x = pack_sequence([torch.randn(n, 6) for n in lengths])
        x = x._replace(data=x.data.requires_grad_())
        reset = torch.rand(30, batch) < 0.1
    else:
        x, reset = torch.randn(batch, 30, 6, requires_grad=True), torch.rand(batch, 30) < 0.1
    wanted = None
    for count in (1, 2, 3, 4):
        threads(count)
        both = count > 1
        assert [c.reason.endswith("side by side with the other direction") for c in explain(module, x)] == [both] * 4
        actual = results(module, x, reset)
        wanted = wanted or actual
        assert all(map(torch.equal, actual, wanted))


def test_under_autocast(threads):
    module, x = MODULES["lstm"](), torch.randn(30, 5, 6, requires_grad=True)
    threads(1)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = results(module, x, None)
    threads(2)
    with torch.autocast("cpu", torch.bfloat16):
        assert [c.reason.endswith("side by side with the other direction") for c in explain(module, x)] == [True] * 4
        actual = results(module, x, None)
    assert actual[0].dtype == torch.bfloat16
    assert all(map(torch.equal, actual, wanted))
