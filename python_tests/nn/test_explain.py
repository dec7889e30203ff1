"""explain names the implementation of every layer in the table, and asks for the calls that forward makes."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import rnnkern.nn.recurrent
from python_tests.samples.layers import HIDDEN_SIZE, INPUT_SIZE, LAYERS, draw_input, layer
from rnnkern import _extension, nn
from rnnkern.ops import explain

T, B, I, H = 5, 3, INPUT_SIZE, HIDDEN_SIZE  # noqa: E741

if not _extension.available:
    pytest.skip(f"no compiled part: {_extension.reason}", allow_module_level=True)


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("ContextNorm", "CoRelNet difference")])
def test_every_layer(name):
    module, model = layer(name), torch.nn.Sequential(layer(name))
    if hasattr(module, "_choose"):
        assert {choice.implementation for choice in explain(module, draw_input(name))} == {"cpu"}
        with rnnkern.use("reference"):
            assert {choice.implementation for choice in explain(module, draw_input(name))} == {"reference"}
    found = rnnkern.explain(model)
    assert {choice.implementation for choices in found.values() for choice in choices} == {"cpu"}
    assert all(place.startswith("0") for place in found)


def without_a_weight(name):
    """A layer whose weight is gone until the first call, as with weight dropout."""
    module = layer(name)
    parts = ((part, key) for part in module.modules() for key, x in part._parameters.items() if x is not None)
    part, key = next((part, key) for part, key in parts if part._parameters[key].dim() > 1)
    delattr(part, key)
    return module, key


@pytest.mark.parametrize("name", ["LSTM", "GRUCell", "ExpRNN", "UnitaryRNN", "LRU", "RelRNN", "SABLSTM", "NeuralODE"])
def test_a_weight_that_is_not_there_yet(name):
    module, gone = without_a_weight(name)
    (choice,) = rnnkern.explain(torch.nn.Sequential(module))["0"]
    assert choice.implementation == "unknown"
    assert f"the layer has no `{gone}` yet" in choice.reason


def test_a_relational_model_names_its_parts():
    found = rnnkern.explain(torch.nn.ModuleList([layer("CoRelNet"), layer("ESBN"), nn.Similarity(4, norm=None)]))
    assert list(found) == ["0.similarity", "1.similarity", "2"]


# ---- calls of the operator

BUILD = {
    "lstm": lambda: nn.LSTM(I, H, 2, bidirectional=True, num_heads=2, zoneout=0.3),
    "lstm_proj": lambda: nn.LSTM(I, H, proj_size=2),
    "gru_before": lambda: nn.GRU(I, H, 2, batch_first=True, reset_gate="before", recurrent_dropout=0.4),
    "modrelu": lambda: nn.RNN(I, H, bidirectional=True, nonlinearity="modrelu"),
    "lstm_norm": lambda: nn.LSTM(I, H, 2, bidirectional=True, layer_norm=True),
}


class Spy:
    """Replaces the operator and records its arguments, in a forward pass and in `_choose`."""

    def __init__(self, operator):
        self.operator, self.ran, self.asked = operator, [], []

    def __call__(self, *args, **kwargs):
        self.ran.append(self.describe(*args, **kwargs))
        return self.operator(*args, **kwargs)

    def _choose(self, *args, **kwargs):
        self.asked.append(self.describe(*args, **kwargs))
        return self.operator._choose(*args, **kwargs)

    @staticmethod
    def describe(*args, **kwargs):
        def plain(value):
            if isinstance(value, dict):
                return {name: plain(v) for name, v in value.items() if name != "seed"}  # explain draws none
            if isinstance(value, torch.Tensor):
                return value.dtype, value.device, tuple(value.shape)
            return [plain(v) for v in value] if isinstance(value, tuple) else value

        return plain(args), plain(kwargs)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["batched", "unbatched", "packed", "autocast"])
@pytest.mark.parametrize("name", BUILD)
def test_it_asks_for_the_calls_that_forward_makes(name, kind, dropout, monkeypatch):
    module = BUILD[name]()
    module.dropout = dropout
    two = "recurrence_bidirectional" if module.bidirectional else "recurrence_stacked"
    one, both = Spy(rnnkern.ops.recurrence), Spy(getattr(rnnkern.ops, two))
    monkeypatch.setattr(rnnkern.nn.recurrent, "recurrence", one)
    monkeypatch.setattr(rnnkern.nn.recurrent, two, both)
    x = torch.randn(B, T, I) if module.batch_first else torch.randn(T, B, I)
    reset = torch.rand(x.shape[:2]) < 0.3
    if kind == "unbatched":
        x, reset = x[0], reset[0]
    if kind == "packed":
        x = pack_padded_sequence(x, torch.full((B,), T), batch_first=module.batch_first)
    generator = torch.get_rng_state()
    with torch.autocast("cpu", enabled=kind == "autocast"):
        choices = explain(module, x, reset=reset)
        assert one.ran == both.ran == []
        assert torch.equal(generator, torch.get_rng_state())
        module(x, reset=reset)
    assert (one.ran, both.ran) == (one.asked, both.asked)
    directions = 2 if module.bidirectional else 1
    assert len(choices) == len(one.ran) + 2 * len(both.ran) == module.num_layers * directions
    assert all(isinstance(choice, rnnkern.ops.Choice) for choice in choices)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("cls", ["GRU", "LSTM", "EURNN", "UnitaryRNN"])
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
    operator = explain(
        rnnkern.ops.recurrence, "lstm", torch.zeros(T, B, 4 * H), plain.weight_hh_l0, (torch.zeros(B, H),) * 2
    )
    assert wanted == operator.implementation
    with rnnkern.ops.use("reference"):
        assert [c.implementation for c in explain(plain, x)] == ["reference"] * 2
    with rnnkern.ops.use("triton"), pytest.raises(ValueError, match="triton"):
        plain(x)
    with pytest.raises(RuntimeError, match="input_size"):
        explain(plain, torch.zeros(T, B, I + 1))
