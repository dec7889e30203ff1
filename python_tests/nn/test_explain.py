"""explain names the implementation of every layer in the table, and draws nothing."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import rnnkern
from python_tests.samples.layers import HIDDEN_SIZE, INPUT_SIZE, LAYERS, SEQUENCES, draw_input, layer
from rnnkern import _extension, nn
from rnnkern.ops import explain

T, B, I, H = 5, 3, INPUT_SIZE, HIDDEN_SIZE  # noqa: E741

if not _extension.available:
    pytest.skip(f"no compiled part: {_extension.reason}", allow_module_level=True)


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("ContextNorm", "CoRelNet difference")])
def test_every_layer(name):
    module, model = layer(name), torch.nn.Sequential(layer(name))
    if hasattr(module, "_choose"):
        x = draw_input(name)
        inputs = [x, x[:, 0], pack_padded_sequence(x, torch.full((3,), 6))] if name in SEQUENCES else [x]
        generator = torch.get_rng_state()
        for given in inputs:
            assert {choice.implementation for choice in explain(module, given)} == {"cpu"}
            with rnnkern.use("reference"):
                assert {choice.implementation for choice in explain(module, given)} == {"reference"}
        assert torch.equal(generator, torch.get_rng_state())
    found = rnnkern.explain(model)
    assert {choice.implementation for choices in found.values() for choice in choices} == {"cpu"}
    assert all(place.startswith("0") for place in found)


@pytest.mark.parametrize("name", ["LSTM", "GRUCell", "ExpRNN", "UnitaryRNN", "LRU", "RelRNN", "SABLSTM", "NeuralODE"])
def test_a_weight_that_is_not_there_yet(name):
    """As with weight dropout until the first call."""
    module = layer(name)
    place, _ = next((key, p) for key, p in module.named_parameters() if p.dim() > 1)
    part, _, gone = place.rpartition(".")
    delattr(module.get_submodule(part), gone)
    (choice,) = rnnkern.explain(torch.nn.Sequential(module))["0"]
    assert choice.implementation == "unknown"
    assert f"the layer has no `{gone}` yet" in choice.reason


def test_a_relational_model_names_its_parts():
    found = rnnkern.explain(torch.nn.ModuleList([layer("CoRelNet"), layer("ESBN"), nn.Similarity(4, norm=None)]))
    assert list(found) == ["0.similarity", "1.similarity", "2"]


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("cls", ["GRU", "LSTM", "EURNN", "HenaffRNN", "UnitaryRNN"])
def test_it_names_layers_and_directions(cls, layers):
    def names(**options):
        choices = explain(getattr(nn, cls)(I, H, layers, **options), torch.zeros(T, B, I))
        return [choice.reason.partition("the cpu kernel serves this call")[0] for choice in choices]

    assert names() == (["layer 0: ", "layer 1: ", "layer 2: "][:layers] if layers > 1 else [""])
    ways = ("forward", "reverse")
    assert names(bidirectional=True) == [f"layer {k}, {way} direction: " for k in range(layers) for way in ways]


def test_it_tells_the_truth_about_projections_and_force():
    x = torch.randn(T, B, I)
    plain, projected = nn.LSTM(I, H, 2), nn.LSTM(I, H, 2, proj_size=2)
    (wanted,) = {c.implementation for c in explain(plain, x)}
    assert [c.implementation for c in explain(projected, x)] == [wanted] * 2
    with rnnkern.use("triton"), pytest.raises(ValueError, match="triton"):
        plain(x)
    with pytest.raises(RuntimeError, match="input_size"):
        explain(plain, torch.zeros(T, B, I + 1))
