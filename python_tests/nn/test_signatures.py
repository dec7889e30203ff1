"""Signatures of the classes as editors show them, and errors for unknown keywords."""

import inspect
import typing

import pytest
import torch

from rnnkern import cells, nn
from rnnkern.nn import options

CLASSES = {name: getattr(nn, name) for name in nn.__all__ if isinstance(getattr(nn, name), type)}
SIZES = {"ContextNorm": ("d",), "Similarity": ("d",), "CoRelNet": ("d", "objects"), "ESBN": ("d", "outputs")}
"""The first arguments of classes that are not recurrent layers."""
OF_CELL = {"Recurrent": [cells.mgu]}
"""Arguments that a class takes before the sizes."""
PASSED_ON = {"RNNOptions": nn.RNN, "LSTMOptions": nn.LSTM, "RelevancyOptions": nn.RelRNN, "MemoryOptions": nn.MemLSTM}


@pytest.mark.parametrize("name", CLASSES)
def test_every_parameter_is_named(name):
    parameters = inspect.signature(CLASSES[name]).parameters.values()
    assert not [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    assert set(SIZES.get(name, ("input_size", "hidden_size"))) <= {p.name for p in parameters}


@pytest.mark.parametrize("name", CLASSES)
def test_an_unknown_keyword_is_named_with_the_class_and_the_nearest_ones(name):
    with pytest.raises(TypeError, match=f"^{name}: unknown argument `dtypee`; did you mean `dtype`"):
        CLASSES[name](*OF_CELL.get(name, ()), 3, 4, dtypee=None)
    sizes = ", ".join(SIZES.get(name, ("input_size", "hidden_size")))
    wanted = f"^{name}: unknown argument `zzz`; available: (cell, )?{sizes}, "
    with pytest.raises(TypeError, match=wanted):
        CLASSES[name](*OF_CELL.get(name, ()), 3, 4, zzz=None)


NOT_RECURRENT = {*SIZES, "NeuralODE", "HeavyBallODE"}


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in NOT_RECURRENT])
@pytest.mark.parametrize("word", ["mask", "lengths"])
def test_an_unknown_keyword_of_a_call_is_named_with_the_remedy(name, word):
    layer = CLASSES[name](*OF_CELL.get(name, ()), 3, 4)
    remedy = "" if name.endswith("Cell") else ", reset.*; pass sequences .*pack_padded_sequence.*`reset`"
    x, hx = torch.zeros(1, 2, 3), torch.zeros(1, 2, 4)
    with pytest.raises(TypeError, match=f"^{name}: unknown argument `{word}`; available: input, hx{remedy}"):
        layer(x, **{word: None})
    with torch.no_grad(), pytest.raises(TypeError, match=f"^{name}: unknown argument"):
        layer(x, hx, **{word: None})


@pytest.mark.parametrize("name", PASSED_ON)
def test_typed_options_are_parameters_of_the_base(name):
    wanted = set(inspect.signature(PASSED_ON[name]).parameters)
    assert set(typing.get_type_hints(getattr(options, name))) <= wanted
