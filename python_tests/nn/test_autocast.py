"""Under torch.autocast on the CPU, layers have the right dtypes and results as accurate as the reference's.

The dtypes of the layers of torch.nn are torch.nn's.
"""

import copy

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import rnnkern
from python_tests.samples import changed, draws, numbered
from python_tests.samples import layers as table
from rnnkern import nn
from rnnkern.testing import assert_close_over_draws

T, B, I, H = 5, 3, 3, 4  # noqa: E741
BFLOAT16 = torch.bfloat16

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")


# ---- layers of torch.nn

MODULES = {
    "rnn": ("RNN", {"num_layers": 2}),
    "lstm": ("LSTM", {"num_layers": 2}),
    "lstm_proj": ("LSTM", {"num_layers": 2, "proj_size": 2}),
    "gru": ("GRU", {"num_layers": 2}),
    **{name: (name, {}) for name in ("RNNCell", "LSTMCell", "GRUCell")},
}
STATES = [None, torch.float32, BFLOAT16]


def pair(cls, **options):
    theirs, ours = (getattr(package, cls)(I, H, **options) for package in (torch.nn, nn))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def arguments(module, packed, dtype, state):
    cell = isinstance(module, torch.nn.RNNCellBase)
    x = torch.randn(*(B,) if cell else (T, B), I, dtype=dtype)
    x = pack_padded_sequence(x, torch.tensor([5, 3, 1])) if packed else x
    if state is None:
        return (x,)
    h, c = (torch.randn(*() if cell else (2,), B, n, dtype=state) for n in (getattr(module, "proj_size", 0) or H, H))
    return x, (h, c) if "LSTM" in type(module).__name__ else h


def rows(result):
    return [y for y in tree_leaves(result) if isinstance(y, torch.Tensor) and y.is_floating_point()]


@pytest.mark.parametrize("state", STATES, ids=lambda dtype: f"state {dtype}")
@pytest.mark.parametrize("dtype", STATES[1:], ids=lambda dtype: f"input {dtype}")
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(("cls", "options"), MODULES.values(), ids=MODULES.keys())
def test_dtypes_and_values_are_torchs(cls, options, packed, dtype, state):
    if cls == "LSTM" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch.nn.LSTM has other dtypes where oneDNN has no bfloat16")
    theirs, ours = pair(cls, **options)
    if isinstance(theirs, torch.nn.RNNCellBase) and (packed or (state, dtype) == (torch.float32, BFLOAT16)):
        pytest.skip("no such call of a cell")

    def compared():
        args = arguments(theirs, packed, dtype, state)
        with torch.autocast("cpu", BFLOAT16):
            actual, naive = rows(ours(*args)), rows(theirs(*args))
            with torch.no_grad():
                assert [y.dtype for y in rows(ours(*args))] == [y.dtype for y in naive]
        assert [y.dtype for y in actual] == [y.dtype for y in naive]
        truth = rows(copy.deepcopy(theirs).double()(*changed(args, torch.Tensor.double)))
        return numbered(actual, naive, truth)

    assert_close_over_draws(draws(compared))


def test_float64_is_left_alone():
    theirs, ours = pair("GRU")
    x = torch.randn(T, B, I, dtype=torch.float64)
    with torch.autocast("cpu", BFLOAT16):
        torch.testing.assert_close(rows(ours.double()(x)), rows(theirs.double()(x)))


# ---- every layer

WIDE = ("GRU", "UnitaryRNN", "ContinuousRNN linear", "GORU")
"""Layers whose output is float32: torch.nn's rule for a GRU, or a recurrence in the dtype of the parameters."""
ATTENDING = [name for name in table.SEQUENCES if name.startswith(("Rel", "Mem", "SAB"))]
FILTERED = ("LSTM momentum", "LSTM Adam")


@pytest.mark.parametrize("name", [*table.SEQUENCES, *table.CELLS])
def test_dtypes(name):
    module, x = table.layer(name), table.draw_input(name, requires_grad=True)
    with torch.autocast("cpu", BFLOAT16):
        output, state = module(x) if name in table.SEQUENCES else (None, module(x))
        again = module(x, state)
    if output is not None:
        assert output.dtype == again[0].dtype == (torch.float32 if name.startswith(WIDE) else BFLOAT16)
    if name in ATTENDING or name.startswith(("UnitaryRNN", "LRU")):
        assert {part.dtype for part in table.values(state)} == {torch.float32}
    if name in FILTERED:
        assert state[-1].dtype == torch.float32
    rows(again)[0].float().sum().backward()
    assert all(leaf.grad.dtype == leaf.dtype for leaf in (x, *module.parameters()) if leaf.grad is not None)


@pytest.mark.parametrize("dtype", STATES[1:], ids=str)
@pytest.mark.parametrize("name", table.RELATIONAL)
def test_objects_are_compared_in_the_dtype_of_the_weight(name, dtype):
    module, x = table.layer(name), table.draw_input(name).to(dtype)
    wanted = module(x.float())
    with torch.autocast("cpu", BFLOAT16):
        actual = module(x)
    torch.testing.assert_close(actual.float(), wanted, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "name", [name for name in table.LAYERS if name not in {*ATTENDING, *table.RELATIONAL, "UnitaryRNN free"}]
)
@pytest.mark.sampled
def test_values_and_gradients_are_as_close_as_the_references(name):
    """The results are compared as bfloat16, in which they are computed."""

    def compared():
        module, x = table.moved(name, by=0.01), table.draw_input(name, steps=20, requires_grad=True)
        with torch.autocast("cpu", BFLOAT16):
            actual = table.values_and_gradients(module, x)
            with rnnkern.use("reference"):
                naive = table.values_and_gradients(module, x)
        truth = table.values_and_gradients(module.double(), x.detach().double().requires_grad_())
        return numbered(*([y.to(BFLOAT16) for y in results] for results in (actual, naive)), truth)

    assert_close_over_draws(draws(compared))
