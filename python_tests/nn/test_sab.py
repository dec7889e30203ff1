"""SABLSTM: layouts, state, resets, and general behavior of modules."""

import io
import pickle

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnkern
from rnnkern.nn import SABLSTM
from rnnkern.ops import sab_recurrence

T, B, I, N = 12, 3, 4, 6  # noqa: E741
alignments = pytest.mark.parametrize("alignment", ["separable", "mlp"])


def layer(**options):
    return SABLSTM(I, N, **{"top_k": 2, "attend_every": 2, "dtype": torch.float64} | options)


@alignments
def test_it_is_the_operator_over_a_projection(alignment):
    module, x = layer(alignment=alignment, truncation=3), torch.randn(T, B, I, dtype=torch.float64)
    output, state = module(x)
    weights = [module.weight_score_l0]
    if alignment == "mlp":
        weights.insert(0, module.weight_alignment_l0)
    u = torch.nn.functional.linear(x, module.weight_ih_l0, module.bias_ih_l0)
    zeros = x.new_zeros(B, N)
    wanted, end = sab_recurrence(
        u, module.weight_hh_l0, (zeros, zeros), weights, top_k=2, attend_every=2, truncation=3, alignment=alignment
    )
    assert torch.equal(output, wanted)
    assert torch.equal(state.memory, end.memory)
    assert output.shape == (T, B, 2 * N)
    assert state.memory.shape == (B, 1 + T // 2, N)
    output.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())


def test_without_attention_it_is_an_lstm():
    module, lstm = layer(top_k=1, truncation=100), torch.nn.LSTM(I, N, dtype=torch.float64)
    with torch.no_grad():
        module.weight_score_l0.zero_()
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"):
            getattr(lstm, name).copy_(getattr(module, name))
        lstm.bias_hh_l0.zero_()
    x = torch.randn(T, B, I, dtype=torch.float64)
    output, state = module(x)
    wanted, (_, c) = lstm(x)
    torch.testing.assert_close(output[..., :N], wanted)
    torch.testing.assert_close(state.c, c[0])
    assert not output[..., N:].any()


def test_layouts_are_the_same_call():
    x, reset = torch.randn(T, B, I, dtype=torch.float64), torch.rand(T, B) < 0.2
    module, first = layer(), layer(batch_first=True)
    first.load_state_dict(module.state_dict())
    output, state = module(x, reset=reset)
    swapped, end = first(x.transpose(0, 1), reset=reset.T)
    assert torch.equal(swapped, output.transpose(0, 1))
    assert torch.equal(end.memory, state.memory)
    for b in range(B):
        alone, own = module(x[:, b], reset=reset[:, b])
        torch.testing.assert_close(alone, output[:, b])
        torch.testing.assert_close(own.memory, state.memory[b])
        again, _ = module(x[:, b], own)
        torch.testing.assert_close(again, module(x, state)[0][:, b])


def test_packed_sequences_are_each_one_alone():
    x, lengths = torch.randn(T, B, I, dtype=torch.float64), [5, 12, 8]
    reset = torch.rand(T, B) < 0.2
    module = layer()
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    output, state = module(packed, reset=reset)
    again = module(packed, state)[0]
    output, again = pad_packed_sequence(output)[0], pad_packed_sequence(again)[0]
    for b, length in enumerate(lengths):
        alone, own = module(x[:length, b], reset=reset[:length, b])
        torch.testing.assert_close(output[:length, b], alone)
        torch.testing.assert_close(state.h[b], own.h)
        torch.testing.assert_close(again[:length, b], module(x[:length, b], own)[0])


@alignments
def test_state_carries_over_chunks(alignment):
    module, x = layer(alignment=alignment), torch.randn(T, B, I, dtype=torch.float64)
    whole, end = module(x)
    first, state = module(x[:5])
    second, state = module(x[5:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(state.memory, end.memory)
    assert module(x[:0], state)[0].shape == (0, B, 2 * N)
    given, _ = module(x, (torch.ones(B, N, dtype=torch.float64), torch.zeros(B, N, dtype=torch.float64)))
    assert not torch.equal(given, whole)


def test_attention_says_what_is_attended_to():
    module, x = layer(), torch.randn(T, B, I, dtype=torch.float64)
    weights, slots = module.attention(x)
    assert weights.shape == slots.shape == (T, B, 2)
    assert slots[0].tolist() == [[0, -1]] * B  # a single memory
    assert (slots[4:] >= 0).all()
    assert (slots.amax(-1) <= torch.arange(T).unsqueeze(1) // 2).all()


@alignments
def test_copies_have_the_same_output(alignment):
    module, x = layer(alignment=alignment, bias=False), torch.randn(T, B, I, dtype=torch.float64)
    output, state = module(x)
    assert torch.equal(pickle.loads(pickle.dumps(module))(x)[0], output)
    other = layer(alignment=alignment, bias=False)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x)[0], output)
    file = io.BytesIO()
    torch.save(tuple(state), file)
    file.seek(0)
    kept = type(state)(*torch.load(file, weights_only=True))
    assert torch.equal(module(x, kept)[0], module(x, state)[0])


def test_it_compiles_whole():
    module, x = layer(alignment="mlp"), torch.randn(T, B, I, dtype=torch.float64)
    compiled = torch.compile(module, fullgraph=True)
    output, state = compiled(x)
    wanted, end = module(x)
    torch.testing.assert_close(output, wanted)
    assert state.steps == end.steps == T
    found = torch.autograd.grad(output.sum(), list(module.parameters()))
    for x, y in zip(found, torch.autograd.grad(wanted.sum(), list(module.parameters())), strict=True):
        torch.testing.assert_close(x, y)


def test_autocast_and_explain():
    module, x = layer(dtype=torch.float32), torch.randn(T, B, I)
    with torch.autocast("cpu", torch.bfloat16):
        output, state = module(x)
        module(x, state)
    assert output.dtype == torch.bfloat16
    assert state.memory.dtype == torch.float32
    assert [choice.implementation for choice in rnnkern.ops.explain(module, x)] == ["cpu"]
    with rnnkern.use("reference"):
        torch.testing.assert_close(module(x)[0], module(x)[0])
        assert rnnkern.ops.explain(module, x)[0].implementation == "reference"


def test_repr_shows_what_is_not_plain():
    assert repr(SABLSTM(4, 6)) == "SABLSTM(4, 6)"
    assert repr(layer(alignment="mlp", batch_first=True)) == (
        "SABLSTM(4, 6, top_k=2, attend_every=2, alignment=mlp, batch_first=True)"
    )


@pytest.mark.parametrize(
    ("error", "options", "said"),
    [
        (ValueError, {"top_k": 0}, "top_k must be at least 1, got 0"),
        (TypeError, {"attend_every": 1.0}, "attend_every should be of type int, got: float"),
        (ValueError, {"truncation": -1}, "truncation must be at least 1, got -1"),
        (ValueError, {"alignment": "dot"}, "alignment must be one of .*, got 'dot'"),
    ],
)
def test_options_are_checked(error, options, said):
    with pytest.raises(error, match=said):
        layer(**options)


@pytest.mark.parametrize(
    ("error", "arguments", "said"),
    [
        (TypeError, ([1.0],), "`input` must be a tensor or a PackedSequence, got list"),
        (TypeError, (torch.randn(T, B, I),), "dtype of the parameters, torch.float64, got torch.float32"),
        (ValueError, (torch.randn(T, B, I + 1).double(),), r"`input` must be \(T, B, 4\), or without B, got"),
        (ValueError, (torch.randn(T, B, I).double(), (torch.zeros(B, N).double(),)), r"`state` must be \(h0, c0\)"),
        (TypeError, (torch.randn(T, B, I).double(), None, torch.zeros(T, B)), "`reset` must be a bool tensor"),
        (ValueError, (torch.randn(T, B, I).double(), None, torch.zeros(T, 1) > 0), r"`reset` must be \(T, B\)"),
    ],
)
def test_arguments_are_checked(error, arguments, said):
    with pytest.raises(error, match=said):
        layer()(*arguments)
