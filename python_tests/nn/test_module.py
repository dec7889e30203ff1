"""The modules with other parts of PyTorch: copies, parametrizations, functional calls; and explain."""

import copy
import pickle

import pytest
import torch
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence

import rnnkern.nn.recurrent

T, B, I, H = 5, 3, 3, 4  # noqa: E741

BUILD = {
    "lstm": lambda: rnnkern.nn.LSTM(I, H, 2, bidirectional=True, num_heads=2),
    "lstm_proj": lambda: rnnkern.nn.LSTM(I, H, proj_size=2),
    "gru_before": lambda: rnnkern.nn.GRU(I, H, 2, batch_first=True, reset_gate="before"),
    "modrelu": lambda: rnnkern.nn.RNN(I, H, bidirectional=True, nonlinearity="modrelu"),
    "lstm_norm": lambda: rnnkern.nn.LSTM(I, H, 2, bidirectional=True, layer_norm=True),
    "gru_norm": lambda: rnnkern.nn.GRU(I, H, batch_first=True, layer_norm=True),
}
modules = pytest.mark.parametrize("build", BUILD.values(), ids=BUILD.keys())


def sample(module):
    batch_first = module.batch_first
    x = torch.randn(B, T, I) if batch_first else torch.randn(T, B, I)
    return x, torch.rand(x.shape[:2]) < 0.3


@modules
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies(build, duplicate):
    module = build()
    x, reset = sample(module)
    output = module(x, reset=reset)[0]
    twin = duplicate(module)
    assert repr(twin) == repr(module)
    assert torch.equal(twin(x, reset=reset)[0], output)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert torch.equal(module(x, reset=reset)[0], output)
    assert not twin(x, reset=reset)[0].any()


class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return 2 * x


@pytest.mark.parametrize("name", ["weight_hh_l0", "weight_ih_l1_reverse", "bias_hh_l1"])
def test_parametrized_once_per_forward(name):
    lstm, plain = BUILD["lstm"](), BUILD["lstm"]()
    plain.load_state_dict(lstm.state_dict())
    with torch.no_grad():
        getattr(plain, name).mul_(2)
    counted = Counted()
    parametrize.register_parametrization(lstm, name, counted)
    x, reset = sample(lstm)
    counted.calls = 0
    output = lstm(x, reset=reset)[0]
    assert counted.calls == 1
    torch.testing.assert_close(output, plain(x, reset=reset)[0])
    output.sum().backward()
    assert lstm.parametrizations[name].original.grad.abs().sum() > 0
    assert torch.equal(copy.deepcopy(lstm)(x, reset=reset)[0], output)
    lstm.to(torch.float64)(x.double(), reset=reset)
    parametrize.remove_parametrizations(lstm, name)
    torch.testing.assert_close(lstm.to(torch.float32)(x, reset=reset)[0], output)


def test_parametrized_first_weight():
    gru, plain = BUILD["gru_before"](), BUILD["gru_before"]()
    plain.load_state_dict(gru.state_dict())
    with torch.no_grad():
        plain.weight_ih_l0.mul_(2)
    parametrize.register_parametrization(gru, "weight_ih_l0", Counted())
    x, _ = sample(gru)
    torch.testing.assert_close(gru(x)[0], plain(x)[0])
    with pytest.raises(ValueError, match="does not match weight dtype"):
        gru(x.double())


@modules
def test_functional_call(build):
    module, other = build(), build()
    x, reset = sample(module)
    before = module(x, reset=reset)[0]
    output = torch.func.functional_call(module, dict(other.named_parameters()), (x,), {"reset": reset})[0]
    assert torch.equal(output, other(x, reset=reset)[0])
    double = {n: p.double() for n, p in module.named_parameters()}
    assert torch.func.functional_call(module, double, (x.double(),))[0].dtype == torch.float64
    assert torch.equal(module(x, reset=reset)[0], before)


def test_assigned_parameter_counts():
    rnn = rnnkern.nn.RNN(I, H)
    rnn.weight_hh_l0 = torch.nn.Parameter(torch.zeros(H, H))
    x = torch.randn(T, B, I)
    wanted = torch.tanh(torch.nn.functional.linear(x, rnn.weight_ih_l0, rnn.bias_ih_l0 + rnn.bias_hh_l0))
    torch.testing.assert_close(rnn(x)[0], wanted)


def test_remnants_of_cudnn():
    lstm = BUILD["lstm"]()
    assert lstm.flatten_parameters() is None
    replica = lstm._replicate_for_data_parallel()
    for name, p in lstm.named_parameters():
        setattr(replica, name, p.detach())
    x, _ = sample(lstm)
    assert torch.equal(replica(x)[0], lstm(x)[0])


def test_torchscript_says_that_it_is_not_supported():
    with pytest.raises(NotImplementedError, match=r"GRU: .* is not supported; use torch.export"):
        torch.jit.script(torch.nn.Sequential(rnnkern.nn.GRU(I, H)))


# ---- calls of the operator


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
                return {name: plain(v) for name, v in value.items()}
            if isinstance(value, torch.Tensor):
                return value.dtype, value.device, tuple(value.shape)
            return [plain(v) for v in value] if isinstance(value, tuple) else value

        return plain(args), plain(kwargs)


@modules
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["batched", "unbatched", "packed", "autocast"])
def test_explain_asks_for_the_calls_that_forward_makes(build, kind, dropout, monkeypatch):
    module = build()
    module.dropout = dropout
    two = "recurrence_bidirectional" if module.bidirectional else "recurrence_stacked"
    one, both = Spy(rnnkern.ops.recurrence), Spy(getattr(rnnkern.ops, two))
    monkeypatch.setattr(rnnkern.nn.recurrent, "recurrence", one)
    monkeypatch.setattr(rnnkern.nn.recurrent, two, both)
    x, reset = sample(module)
    if kind == "unbatched":
        x, reset = x[0], reset[0]
    if kind == "packed":
        x = pack_padded_sequence(x, torch.full((B,), T), batch_first=module.batch_first)
    generator = torch.get_rng_state()
    with torch.autocast("cpu", enabled=kind == "autocast"):
        choices = rnnkern.ops.explain(module, x, reset=reset)
        assert one.ran == both.ran == []
        assert torch.equal(generator, torch.get_rng_state())
        module(x, reset=reset)
    assert (one.ran, both.ran) == (one.asked, both.asked)
    directions = 2 if module.bidirectional else 1
    assert len(choices) == len(one.ran) + 2 * len(both.ran) == module.num_layers * directions
    assert all(isinstance(choice, rnnkern.ops.Choice) for choice in choices)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("cls", ["GRU", "LSTM", "EURNN", "UnitaryRNN"])
def test_explain_names_layers_and_directions(cls, layers):
    def names(**options):
        choices = rnnkern.ops.explain(getattr(rnnkern.nn, cls)(I, H, layers, **options), torch.zeros(T, B, I))
        return [choice.reason.partition("the cpu kernel serves this call")[0] for choice in choices]

    assert names() == (["layer 0: ", "layer 1: ", "layer 2: "][:layers] if layers > 1 else [""])
    ways = ("forward", "reverse")
    assert names(bidirectional=True) == [f"layer {k}, {way} direction: " for k in range(layers) for way in ways]


def test_explain_tells_the_truth_about_projections_and_force():
    x = torch.randn(T, B, I)
    plain, projected = rnnkern.nn.LSTM(I, H, 2), rnnkern.nn.LSTM(I, H, 2, proj_size=2)
    (wanted,) = {c.implementation for c in rnnkern.ops.explain(plain, x)}
    assert [c.implementation for c in rnnkern.ops.explain(projected, x)] == [wanted] * 2
    operator = rnnkern.ops.explain(
        rnnkern.ops.recurrence, "lstm", torch.zeros(T, B, 4 * H), plain.weight_hh_l0, (torch.zeros(B, H),) * 2
    )
    assert wanted == operator.implementation
    with rnnkern.ops.use("reference"):
        assert [c.implementation for c in rnnkern.ops.explain(plain, x)] == ["reference"] * 2
    with rnnkern.ops.use("triton"), pytest.raises(ValueError, match="triton"):
        plain(x)
    with pytest.raises(RuntimeError, match="input_size"):
        rnnkern.ops.explain(plain, torch.zeros(T, B, I + 1))
