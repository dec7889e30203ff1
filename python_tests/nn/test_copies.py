"""Layers survive copying, pickling, files, other devices and dtypes, and functional calls, and print their options."""

import copy
import io
import pickle

import pytest
import torch
from torch.func import functional_call
from torch.nn.utils import parametrize

from python_tests.samples import layers as table
from rnnkern import nn
from rnnkern.nn.filters import Momentum
from rnnkern.ops import RelevancyState, SABState

every = pytest.mark.parametrize("name", table.LAYERS)


def through_a_file(thing, **options):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, **options)


@every
def test_copies(name):
    module, x = table.moved(name), table.draw_input(name)
    other, on_meta = table.moved(name), table.layer(name, device="meta")
    assert {t.device.type for t in (*on_meta.parameters(), *on_meta.buffers())} == {"meta"}
    wanted = table.values(module(x))
    assert other.load_state_dict(module.state_dict()) == ([], [])
    assert on_meta.load_state_dict(copy.deepcopy(module.state_dict()), assign=True) == ([], [])
    twins = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), through_a_file(module, weights_only=False)]
    for twin in (other, on_meta, *twins):
        assert type(twin).__name__ == type(module).__name__
        assert repr(twin) == repr(module)
        assert table.same(table.values(twin(x)), wanted)
        with torch.no_grad():
            for p in twin.parameters():
                p.zero_()
    assert table.same(table.values(module(x)), wanted)


@pytest.mark.parametrize("name", ["RNN modrelu", "LSTM projected", "GRU", "ExpRNN", "EURNN fused", "UnitaryRNN"])
def test_shapes_on_the_meta_device(name):
    module, x = table.layer(name, num_layers=2), table.draw_input(name)
    found, wanted = (table.values(each) for each in (copy.deepcopy(module).to("meta")(x.to("meta")), module(x)))
    assert [(y.shape, y.device.type) for y in found] == [(y.shape, "meta") for y in wanted]


@pytest.mark.parametrize("name", table.SEQUENCES)
def test_a_state_goes_through_a_file(name):
    module, x = table.moved(name), table.draw_input(name)
    _, state = module(x)
    with torch.no_grad(), torch.serialization.safe_globals([RelevancyState, SABState]):
        assert table.same(table.values(module(x, through_a_file(state))), table.values(module(x, state)))


@pytest.mark.parametrize("name", [name for name in table.LAYERS if not name.startswith("UnitaryRNN ")])
def test_another_dtype(name):
    module, twin, x = table.moved(name), table.layer(name, dtype=torch.float64), table.draw_input(name).double()
    twin.load_state_dict(module.state_dict())
    found = table.values(module.double()(x))
    assert {y.dtype for y in (*module.parameters(), *found)} == {torch.float64}
    assert table.same(found, table.values(twin(x)))


@every
def test_a_functional_call(name):
    module, other, x = table.moved(name), table.moved(name), table.draw_input(name)
    before = table.values(module(x))
    weights = dict(other.named_parameters()) | dict(other.named_buffers())
    assert table.same(table.values(functional_call(module, weights, (x,))), table.values(other(x)))
    assert table.same(table.values(module(x)), before)


@pytest.mark.parametrize("name", [*table.SEQUENCES, *table.ODES])  # what a cell computes then is another step
def test_without_gradients(name):
    module, x = table.moved(name), table.draw_input(name)
    wanted = table.values(module(x))
    module.requires_grad_(False)
    with torch.inference_mode():
        output = module(x)
    output = output[0] if isinstance(output, tuple) else output
    assert output.is_inference()
    assert torch.equal(output, wanted[0])


@pytest.mark.parametrize("name", [*table.SEQUENCES, *table.CELLS, *table.ODES])
def test_frozen_weights(name):
    module, x = table.moved(name), table.draw_input(name, requires_grad=True)
    wanted = table.values_and_gradients(module, x)
    parameters = list(module.parameters())
    for p in parameters[::2]:
        p.requires_grad_(False)
    kept = len(wanted) - len(parameters)
    assert table.same(table.values_and_gradients(module, x), [*wanted[:kept], *wanted[kept + 1 :: 2]])


class Doubled(torch.nn.Module):
    calls = 0

    def forward(self, weight):
        self.calls += 1
        return 2 * weight


TORCHS = (torch.nn.RNNBase, torch.nn.RNNCellBase)
PLAIN = [
    name
    for name in table.LAYERS
    if issubclass(table.class_of(name), TORCHS) and not hasattr(table.layer(name), "parametrizations")
]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", PLAIN)
def test_parametrized_weights_are_computed_once_in_a_call(name, grad):
    module, doubled, x = table.moved(name), table.layer(name), table.draw_input(name)
    names = dict(module.named_parameters())
    doubled.load_state_dict({key: 2 * p for key, p in names.items()})
    for key in names:
        parametrize.register_parametrization(module, key, Doubled())
    maps = [module.parametrizations[key][0] for key in names]
    calls = [each.calls for each in maps]
    if not grad:
        with torch.no_grad():
            torch.testing.assert_close(module(x), doubled(x))
        assert [each.calls for each in maps] == [n + 1 for n in calls]
        return
    actual, wanted = table.values_and_gradients(module, x), table.values_and_gradients(doubled, x)
    assert [each.calls for each in maps] == [n + 1 for n in calls]
    kept = len(wanted) - len(names)
    torch.testing.assert_close(actual, [*wanted[:kept], *(2 * g for g in wanted[kept:])])
    assert table.same(table.values(copy.deepcopy(module)(x)), actual[:kept])
    for key in names:
        parametrize.remove_parametrizations(module, key)
    assert table.same(table.values(module(x)), actual[:kept])


# ---- what a module of torch.nn has


def test_an_assigned_parameter_counts():
    rnn = table.layer("RNN")
    rnn.weight_hh_l0 = torch.nn.Parameter(torch.zeros(8, 8))
    x = table.draw_input("RNN")
    wanted = torch.tanh(torch.nn.functional.linear(x, rnn.weight_ih_l0, rnn.bias_ih_l0 + rnn.bias_hh_l0))
    torch.testing.assert_close(rnn(x)[0], wanted)


def test_a_dtype_is_checked_against_the_first_weight_even_if_it_is_parametrized():
    gru = table.layer("GRU before")
    parametrize.register_parametrization(gru, "weight_ih_l0", Doubled())
    with pytest.raises(ValueError, match="does not match weight dtype"):
        gru(table.draw_input("GRU before").double())


def test_remnants_of_cudnn():
    lstm, x = table.layer("LSTM", num_layers=2, bidirectional=True), table.draw_input("LSTM")
    assert lstm.flatten_parameters() is None
    replica = lstm._replicate_for_data_parallel()
    for name, p in lstm.named_parameters():
        setattr(replica, name, p.detach())
    assert torch.equal(replica(x)[0], lstm(x)[0])


def test_torchscript_says_that_it_is_not_supported():
    with pytest.raises(NotImplementedError, match=r"GRU: .* is not supported; use torch.export"):
        torch.jit.script(torch.nn.Sequential(table.layer("GRU")))


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU])
def test_a_state_dict_of_norms_needs_norms(cls):
    with pytest.raises(RuntimeError, match="weight_ln_ih_l0"):
        cls(3, 4).load_state_dict(cls(3, 4, layer_norm=True).state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_dtype_that_is_not_supported_is_refused_before_it_is_there(dtype):
    lru = table.layer("LRU")
    with pytest.raises(TypeError, match=r"LRU supports float32 and float64, got torch\."):
        torch.nn.Sequential(lru).to(dtype)
    assert {p.dtype for p in lru.parameters()} == {torch.float32}
    assert lru.double().to("meta").nu_log.dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.RNN(3, 6), "rnnkern.nn.RNN(3, 6)"),
        (lambda: nn.RNN(3, 6, nonlinearity="modrelu", num_heads=2), "RNN(3, 6, num_heads=2, nonlinearity=modrelu)"),
        (lambda: nn.LSTM(3, 6, 2, proj_size=2), "LSTM(3, 6, proj_size=2, num_layers=2)"),
        (lambda: nn.LSTM(3, 5, recurrent_grad_dropout=0.25), "LSTM(3, 5, recurrent_grad_dropout=0.25)"),
        (lambda: nn.LSTM(3, 6, zoneout=(0.1, 0.2), recurrent_dropout=0.5),
         "LSTM(3, 6, zoneout=(0.1, 0.2), recurrent_dropout=0.5)"),
        (lambda: nn.LSTM(3, 5, 2, layer_norm=True), "LSTM(3, 5, num_layers=2, layer_norm=True)"),
        (lambda: nn.GRU(3, 5, layer_norm=False), "rnnkern.nn.GRU(3, 5)"),
        (lambda: nn.GRU(3, 6, batch_first=True, num_heads=3), "GRU(3, 6, batch_first=True, num_heads=3)"),
        (lambda: nn.GRU(3, 6, reset_gate="before"), "GRU(3, 6, reset_gate=before)"),
        (lambda: nn.GRU(4, 6, filter=Momentum(0.5, 1)), "GRU(4, 6, filter=Momentum(mu=0.5, s=1))"),
        (lambda: nn.LRU(4, 6, output_size=3, r_min=0.5), "LRU(4, 6, output_size=3, r_min=0.5)"),
        (lambda: nn.RelRNN(3, 4, combine="sum", nonlinearity="relu", batch_first=True),
         "RelRNN(3, 4, buffer_size=10, relevant_size=10, nonlinearity=relu, combine=sum, batch_first=True)"),
        (lambda: nn.MemLSTM(3, 4, bias=False), "MemLSTM(3, 4, bias=False)"),
        (lambda: nn.SABLSTM(4, 6), "SABLSTM(4, 6)"),
        (lambda: nn.SABLSTM(4, 6, alignment="mlp", batch_first=True), "SABLSTM(4, 6, alignment=mlp, batch_first=True)"),
    ],
)  # fmt: skip
def test_a_layer_prints_how_it_was_made(make, said):
    module = make()
    for copied in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(copied).endswith(said)


def test_other_layers_print_their_options_first():
    assert "dt=0.2, nonlinearity=identity" in str(nn.ContinuousRNN(4, 6, dt=0.2, nonlinearity="identity"))
    module = nn.UnitaryRNN(2, 4, 2, unitary_map="givens", bidirectional=True)
    assert "2, 4, num_layers=2, unitary_map=givens, bidirectional=True\n" in repr(module)
