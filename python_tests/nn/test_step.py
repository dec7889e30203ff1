"""A call for one step without derivatives uses a fast path with the same results and errors."""

import copy

import pytest
import torch

import rnnkern
import rnnkern.nn.cells
from python_tests.samples import changed, draws, nudged, numbered
from python_tests.samples.layers import HIDDEN_SIZE, INPUT_SIZE, layer
from rnnkern import _extension, nn
from rnnkern.testing import assert_close_over_draws

pytestmark = pytest.mark.skipif(not _extension.available, reason=_extension.reason or "")

NAMES = ("RNN", "RNN relu", "RNN modrelu", "GRU", "GRU before", "LSTM", "LSTM heads")
OPTIONS = {"plain": {}, "no bias": {"bias": False}, "batch first": {"batch_first": True}}


@pytest.fixture
def taken(monkeypatch):
    """For each call, in order, whether it used the fast path."""
    seen = []
    whole = nn.recurrent.RecurrentBase._step

    def step(self, *args):
        result = whole(self, *args)
        seen.append(result is not None)
        return result

    monkeypatch.setattr(nn.recurrent.RecurrentBase, "_step", step)
    return seen


def arguments(module, batch=1, dtype=torch.float32):
    shape = (batch, 1) if module.batch_first else (1, batch)
    state = torch.randn(2, 1, batch, HIDDEN_SIZE, dtype=dtype)
    return torch.randn(*shape, INPUT_SIZE, dtype=dtype), tuple(state) if module.mode == "LSTM" else state[0]


def flat(result):
    output, state = result
    return [output, *(state if isinstance(state, tuple) else (state,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_one_step_is_what_the_reference_gives(name, options, dtype, taken):
    module = layer(name, dtype=dtype, **OPTIONS[options])

    def compared(batch):
        taken.clear()
        given = arguments(module, batch, dtype)
        with torch.no_grad():
            actual = flat(module(*given))
        assert taken == [name != "RNN modrelu" and (options != "batch first" or batch == 1)]
        assert len({s.untyped_storage().data_ptr() for s in actual}) == len(actual), "results share memory"
        with rnnkern.use("reference"), torch.no_grad():
            naive = flat(module(*(changed(given, nudged) if dtype == torch.float64 else given)))
            truth = flat(copy.deepcopy(module).double()(*changed(given, torch.Tensor.double)))
        return numbered(actual, naive, truth)

    for batch in (1, 3, 9):
        assert_close_over_draws(draws(compared, batch), f"B = {batch}: ")


def test_whatever_is_more_than_a_step_goes_the_whole_way(taken):
    more = {"num_layers": 2}, {"bidirectional": True}, {"proj_size": 3}, {"zoneout": 0.3}, {"recurrent_dropout": 0.4}
    for options in more:
        module = layer("LSTM", **options).eval()
        x = torch.randn(1, 2, INPUT_SIZE)
        with torch.no_grad():
            module(x, module(x)[1])
    module = layer("GRU")
    x, hx = arguments(module)
    with torch.no_grad(), rnnkern.use("reference"):
        module(x, hx)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        h = module(x, hx)[0]
        assert torch.equal(h, h.bfloat16().float()), "of the dtype that torch.nn has, but computed in autocast's"
    torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    with torch.no_grad():
        module(x, hx)
    module(x, hx)
    assert not any(taken)


def test_a_cell_takes_it_only_without_derivatives(monkeypatch):
    steps, short = [], rnnkern.nn.cells.step
    monkeypatch.setattr(rnnkern.nn.cells, "step", lambda **kwargs: steps.append(short(**kwargs)) or steps[-1])
    for name in ("RNNCell", "LSTMCell", "GRUCell"):
        cell, x = layer(name), torch.randn(3, INPUT_SIZE)
        cell(x)
        with torch.no_grad():
            cell(x)
            with rnnkern.use("reference"):
                cell(x)
    assert [s is None for s in steps] == [False, True] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, h: (x[..., :3], h),
        lambda x, h: (x.double(), h),
        lambda x, h: (x, h.double()),
        lambda x, h: (x, h[..., :7]),
        lambda x, h: (x, h.expand(1, 2, HIDDEN_SIZE)),
        lambda x, h: (x, h.expand(2, 1, HIDDEN_SIZE)),
        lambda x, h: (x[0, 0, 0], h),
    ],
)
@pytest.mark.parametrize("name", ["RNN", "LSTM"])
def test_errors_are_those_of_the_whole_way(name, wrong):
    module = layer(name)
    x, hx = arguments(module)
    x, h = wrong(x, hx[0] if name == "LSTM" else hx)
    hx = (h, hx[1]) if name == "LSTM" else h
    said = []
    for grad in (True, False):
        with torch.set_grad_enabled(grad), pytest.raises((ValueError, RuntimeError, TypeError)) as error:
            module(x, hx)
        said.append((type(error.value), str(error.value)))
    assert said[0] == said[1]


def test_forward_mode_works_without_gradients_too():
    module = layer("RNN")
    x, h = arguments(module)
    with torch.no_grad():
        found = torch.func.jvp(lambda x: module(x, h)[0], (x,), (x,))
        with rnnkern.use("reference"):
            torch.testing.assert_close(found, torch.func.jvp(lambda x: module(x, h)[0], (x,), (x,)))
