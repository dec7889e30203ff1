"""torch.autocast on the CPU: the dtypes are those of torch.nn's modules, and the results are as accurate."""

import copy

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import rnnkern.nn
from python_tests.samples import changed, draws, numbered
from rnnkern.testing import assert_close_over_draws

T, B, I, H = 5, 3, 3, 4  # noqa: E741

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")

BFLOAT16 = torch.bfloat16
MODULES = {"rnn": ("RNN", {}), "lstm": ("LSTM", {}), "lstm_proj": ("LSTM", {"proj_size": 2}), "gru": ("GRU", {})}
STATES = [None, torch.float32, BFLOAT16]


def pair(cls, **options):
    theirs, ours = (getattr(package, cls)(I, H, 2, **options) for package in (torch.nn, rnnkern.nn))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def arguments(module, packed, dtype, state):
    x = torch.randn(T, B, I, dtype=dtype)
    x = pack_padded_sequence(x, torch.tensor([5, 3, 1])) if packed else x
    if state is None:
        return (x,)
    widths = [module.proj_size or H, H]
    h, c = (torch.randn(2, B, width, dtype=state) for width in widths)
    return x, (h, c) if isinstance(module, torch.nn.LSTM) else h


def flat(result):
    output, hidden = result
    output = output if isinstance(output, torch.Tensor) else output.data
    return [output, *(hidden if isinstance(hidden, tuple) else (hidden,))]


@pytest.mark.parametrize("state", STATES, ids=lambda dtype: f"state {dtype}")
@pytest.mark.parametrize("dtype", STATES[1:], ids=lambda dtype: f"input {dtype}")
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(("cls", "options"), MODULES.values(), ids=MODULES.keys())
def test_dtypes_and_values_are_torchs(cls, options, packed, dtype, state):
    if cls == "LSTM" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch.nn.LSTM has other dtypes where oneDNN has no bfloat16")
    theirs, ours = pair(cls, **options)

    def compared():
        args = arguments(theirs, packed, dtype, state)
        with torch.autocast("cpu", BFLOAT16):
            actual, naive = flat(ours(*args)), flat(theirs(*args))
        assert [y.dtype for y in actual] == [y.dtype for y in naive]
        truth = flat(copy.deepcopy(theirs).double()(*changed(args, torch.Tensor.double)))
        return numbered(actual, naive, truth)

    assert_close_over_draws(draws(compared))


@pytest.mark.parametrize(("cls", "options"), MODULES.values(), ids=MODULES.keys())
def test_gradients_keep_the_dtypes_of_what_they_belong_to(cls, options):
    _, ours = pair(cls, **options)
    x = torch.randn(T, B, I, requires_grad=True)
    with torch.autocast("cpu", BFLOAT16):
        values = flat(ours(x))
    sum(y.float().square().sum() for y in values).backward()
    assert {leaf.grad.dtype for leaf in (x, *ours.parameters())} == {torch.float32}
    assert all(leaf.grad.abs().sum() > 0 for leaf in (x, *ours.parameters()))


def test_float64_is_left_alone():
    theirs, ours = pair("GRU")
    x = torch.randn(T, B, I, dtype=torch.float64)
    with torch.autocast("cpu", BFLOAT16):
        torch.testing.assert_close(flat(ours.double()(x)), flat(theirs.double()(x)))
