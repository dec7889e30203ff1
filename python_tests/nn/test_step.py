"""A call for one step without derivatives uses a fast path with the same results and errors."""

import copy

import pytest
import torch

import rnnkern
from python_tests.samples import changed, draws, nudged, numbered
from rnnkern import _extension, nn
from rnnkern.testing import assert_close_over_draws

pytestmark = pytest.mark.skipif(not _extension.available, reason=_extension.reason or "")

MODULES = {
    "tanh": lambda **k: nn.RNN(12, 20, **k),
    "relu": lambda **k: nn.RNN(12, 20, nonlinearity="relu", **k),
    "modrelu": lambda **k: nn.RNN(12, 20, nonlinearity="modrelu", **k),
    "gru": lambda **k: nn.GRU(12, 20, **k),
    "gru before": lambda **k: nn.GRU(12, 20, reset_gate="before", **k),
    "lstm": lambda **k: nn.LSTM(12, 20, **k),
    "lstm heads": lambda **k: nn.LSTM(12, 20, num_heads=4, **k),
}
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


def arguments(module, batch=1, dtype=torch.float32, steps=1):
    lstm = isinstance(module, torch.nn.LSTM)
    shape = (batch, steps, 12) if module.batch_first else (steps, batch, 12)
    state = torch.randn(2, 1, batch, 20, dtype=dtype)
    return torch.randn(shape, dtype=dtype), tuple(state) if lstm else state[0]


def flat(result):
    output, state = result
    return [output, *(state if isinstance(state, tuple) else (state,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MODULES)
def test_one_step_is_what_the_reference_gives(name, options, dtype, taken):
    module = MODULES[name](**OPTIONS[options], dtype=dtype)

    def compared(batch):
        taken.clear()
        given = arguments(module, batch, dtype)
        with torch.no_grad():
            actual = flat(module(*given))
        assert taken == [name != "modrelu" and (options != "batch first" or batch == 1)]
        assert len({s.untyped_storage().data_ptr() for s in actual}) == len(actual), "results share memory"
        with rnnkern.use("reference"), torch.no_grad():
            naive = flat(module(*(changed(given, nudged) if dtype == torch.float64 else given)))
            truth = flat(copy.deepcopy(module).double()(*changed(given, torch.Tensor.double)))
        return numbered(actual, naive, truth)

    for batch in (1, 3, 9):
        assert_close_over_draws(draws(compared, batch), f"B = {batch}: ")


def test_step_by_step_is_the_whole_sequence(taken):
    module = nn.LSTM(12, 20)
    x, hx = arguments(module, 2, steps=30)
    with torch.inference_mode():
        wanted, (h_n, c_n) = module(x, hx)
        outputs = []
        for x_t in x.split(1):
            output, hx = module(x_t, hx)
            outputs.append(output)
    assert taken == [False, *[True] * 30]
    torch.testing.assert_close(torch.cat(outputs), wanted)
    torch.testing.assert_close(hx, (h_n, c_n))


def test_whatever_is_more_than_a_step_goes_the_whole_way(taken):
    for module in (nn.GRU(12, 20, num_layers=2), nn.GRU(12, 20, bidirectional=True), nn.LSTM(12, 20, proj_size=5)):
        with torch.no_grad():
            module(torch.randn(1, 2, 12))
    module = nn.GRU(12, 20)
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


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, h: (x[..., :11], h),
        lambda x, h: (x.double(), h),
        lambda x, h: (x, h.double()),
        lambda x, h: (x, h[..., :19]),
        lambda x, h: (x, h.expand(1, 2, 20)),
        lambda x, h: (x, h.expand(2, 1, 20)),
        lambda x, h: (x[0, 0, 0], h),
    ],
)
@pytest.mark.parametrize("name", ["tanh", "lstm"])
def test_errors_are_those_of_the_whole_way(name, wrong):
    module = MODULES[name]()
    x, hx = arguments(module)
    h = hx[0] if name == "lstm" else hx
    x, h = wrong(x, h)
    hx = (h, hx[1]) if name == "lstm" else h
    said = []
    for grad in (True, False):
        with torch.set_grad_enabled(grad), pytest.raises((ValueError, RuntimeError, TypeError)) as error:
            module(x, hx)
        said.append((type(error.value), str(error.value)))
    assert said[0] == said[1]


def test_forward_mode_works_without_gradients_too():
    module = nn.RNN(12, 20)
    x, h = arguments(module)
    with torch.no_grad():
        found = torch.func.jvp(lambda x: module(x, h)[0], (x,), (x,))
        with rnnkern.use("reference"):
            torch.testing.assert_close(found, torch.func.jvp(lambda x: module(x, h)[0], (x,), (x,)))
