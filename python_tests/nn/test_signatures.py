"""Every public class shows all of its options, and names the one that was meant."""

import inspect
import re

import pytest

import rnnkern.nn
from rnnkern.nn import options

TO_COME = {
    "EURNN", "GORU", "SABLSTM", "CayleyRNN", "ExpRNN", "HouseholderRNN", "MemLSTM", "MemRNN", "NonNormalRNN",
    "OrthogonalInitRNN", "RelLSTM", "RelRNN", "SpectralRNN", "UnitaryRNN",
}  # fmt: skip
CLASSES = [getattr(rnnkern.nn, name) for name in rnnkern.nn.__all__ if name not in TO_COME]
CLASSES = [cls for cls in CLASSES if isinstance(cls, type)]
classes = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


@classes
def test_no_option_is_hidden(cls):
    parameters = inspect.signature(cls).parameters.values()
    assert not {p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    undocumented = [p.name for p in parameters if not re.search(rf"\b{p.name}\b", inspect.getdoc(cls))]
    if not issubclass(cls, (rnnkern.nn.MomentumRNN, rnnkern.nn.MomentumLSTM)):  # which refer to the base
        assert not undocumented


@classes
def test_the_option_that_was_meant_is_named(cls):
    for name in list(inspect.signature(cls).parameters)[2:]:
        with pytest.raises(TypeError, match=rf"{cls.__name__}: unknown argument `{name}x`; did you mean .*`{name}`"):
            cls(2, 4, **{f"{name}x": None})


def test_an_option_that_is_like_none():
    with pytest.raises(TypeError, match="LSTMCell: unknown argument `zoneout`; it takes input_size, hidden_size, bias"):
        rnnkern.nn.LSTMCell(2, 4, zoneout=0.1)


def test_options_of_the_typed_dicts_are_those_of_the_classes():
    RNN, LSTM, GRU = (inspect.signature(getattr(rnnkern.nn, name)).parameters.keys() for name in ("RNN", "LSTM", "GRU"))
    sizes = {"input_size", "hidden_size", "num_layers"}
    assert options.LayerOptions.__annotations__.keys() == (RNN & LSTM & GRU) - sizes - {"filter"}
    assert options.RNNOptions.__annotations__.keys() == RNN - sizes
