"""Layers that attend to their past: RelRNN, RelLSTM, MemRNN, MemLSTM and SABLSTM."""

import itertools

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import rnnkern.nn
from python_tests.samples import draws, mostly
from python_tests.samples import layers as table
from python_tests.samples.layers import HIDDEN_SIZE, INPUT_SIZE, SEQUENCES
from rnnkern import parametrizations, reference
from rnnkern.nn import SABLSTM, MemRNN, RelLSTM, RelRNN
from rnnkern.ops import sab_recurrence
from rnnkern.ops._recurrence.linear import linear
from rnnkern.testing import assert_close_over_draws

T, B, I, N = 9, 3, INPUT_SIZE, HIDDEN_SIZE  # noqa: E741
NAMES = [name for name in SEQUENCES if name.startswith(("Rel", "Mem"))]
every = pytest.mark.parametrize("name", NAMES)


def build(cls, **options):
    return cls(I, N, dtype=torch.float64, **options)


def inputs(*shape):
    return torch.randn(*(shape or (T, B, I)), dtype=torch.float64)


def of_reference(layer, x, dtype, **rest):
    """Output and gradients of the reference."""
    weights = {name: p.detach().to(dtype).requires_grad_() for name, p in layer.named_parameters()}
    u = torch.nn.functional.linear(x.to(dtype), weights["weight_ih_l0"], weights.get("bias_ih_l0"))
    scaled = torch.full((N,), (N / layer.num_heads) ** -0.5, dtype=dtype)
    v = weights.get("weight_score_l0", scaled)
    attention = (weights["weight_query_l0"], weights["weight_key_l0"], v.view(layer.num_heads, -1))
    relevance = layer.relevance
    if relevance == "learned":
        relevance = (x.to(dtype) * weights["weight_screen_l0"]).sum(-1)
    s, c = (torch.zeros(x.shape[1], n, dtype=dtype) for n in (weights["weight_hh_l0"].shape[1], N))
    output, state = reference.relevancy_recurrence(
        layer._cell, u, weights["weight_hh_l0"], (s, c) if layer._cell == "lstm" else (s,),
        attention,
        buffer_size=layer.buffer_size, relevant_size=layer.relevant_size, combine=layer.combine,
        alignment=layer.alignment.removeprefix("scaled_"), relevance=relevance, output=layer.output,
        params=[weights["modrelu_bias_l0"]] if "modrelu_bias_l0" in weights else (), **rest,
    )  # fmt: skip
    grads = torch.autograd.grad(output.square().sum(), list(weights.values()))
    return dict(zip(["output", *weights], [output, *grads], strict=True)), state


@every
@pytest.mark.sampled
def test_a_layer_is_the_definition(name):
    def compared():
        layer, x = table.layer(name), torch.randn(T, B, I)
        reset = torch.rand(T, B) < 0.15
        output, state = layer(x, reset=reset)
        grads = torch.autograd.grad(output.square().sum(), list(layer.parameters()))
        found = {"output": output} | dict(zip(dict(layer.named_parameters()), grads, strict=True))
        naive, other = of_reference(layer, x, torch.float32, reset=reset)
        truth, wanted = of_reference(layer, x, torch.float64, reset=reset)
        same = all(torch.equal(getattr(s, ids), getattr(wanted, ids))
                   for s in (state, other) for ids in ("ids", "buffer_ids"))  # fmt: skip
        return same, {name: (value, naive[name], truth[name]) for name, value in found.items()}

    assert_close_over_draws(mostly(draws(compared)))


@every
def test_attention_says_what_was_attended_to(name):
    layer, x = table.layer(name, dtype=torch.float64), inputs()
    weights, ids = layer.attention(x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(T, B, dtype=torch.float64))
    assert torch.equal(weights > 0, ids >= 0)
    assert all((ids[t] == t).any() for t in range(T))
    layer.batch_first = True
    assert torch.equal(layer.attention(x.transpose(0, 1)).weights.transpose(0, 1), weights)
    assert torch.equal(layer.attention(x[:, 1]).ids, ids[:, 1])
    assert layer.attention(pack_sequence([x[:, 0], x[:4, 1]])).weights.data.shape == (T + 4, weights.shape[-1])


def test_random_screening_draws_from_torchs_generator():
    layer, x = build(RelRNN, buffer_size=1, relevant_size=2, relevance="random"), inputs(30, B, I)
    outputs = [(torch.manual_seed(seed), layer(x)[0])[1] for seed in (0, 0, 1)]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


# ---- the recurrent weight


def published(layer, x):
    """s of a MemRNN with several heads and the scaled dot product, from equations 2.7.1 to 2.7.4 of Kerg 2022."""
    V, W_a, U_a = layer.weight_hh_l0, layer.weight_query_l0, layer.weight_key_l0
    parts = [slice(k, k + N // layer.num_heads) for k in range(0, N, N // layer.num_heads)]
    s, past, out = x.new_zeros(2 * N), [], []
    for now in x:
        h = torch.tanh(V @ s + layer.weight_ih_l0 @ now + layer.bias_ih_l0)
        past.append(h)
        contexts = []
        for part in parts:
            query, keys = (W_a @ s)[part], torch.stack([(U_a @ one)[part] for one in past])
            alpha = torch.softmax(keys @ query / len(query) ** 0.5, 0)
            contexts.append(alpha @ torch.stack(past)[:, part])
        s = torch.cat([h, *contexts])
        out.append(s)
    return torch.stack(out)


@pytest.mark.parametrize("num_heads", [1, 4])
def test_heads_and_a_query_of_h_and_context_are_as_published(num_heads):
    layer = build(MemRNN, combine="concat", alignment="scaled_dot", num_heads=num_heads, output="s")
    assert layer.weight_hh_l0.shape == layer.weight_query_l0.shape == (N, 2 * N)
    x = inputs()
    output, state = layer(x)
    assert state.s.shape == (B, 2 * N)
    loop = torch.stack([published(layer, sequence) for sequence in x.unbind(1)], 1)
    torch.testing.assert_close(output, loop, rtol=1e-12, atol=1e-12)
    leaves = list(layer.parameters())
    found, truth = (torch.autograd.grad(y.square().sum(), leaves) for y in (output, loop))
    torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-10)
    given = layer(x, torch.zeros(1, B, 2 * N, dtype=torch.float64))[0]
    torch.testing.assert_close(given, output)


def test_v_begins_orthogonal():
    for layer in (build(RelRNN), build(RelLSTM), build(RelLSTM, bias=False)):
        V = layer.weight_hh_l0.unflatten(0, (-1, N))
        torch.testing.assert_close(V @ V.mT, torch.eye(N, dtype=torch.float64).expand_as(V))
        assert not torch.equal(V[0], V[-1]) or len(V) == 1
    assert build(RelLSTM).bias_ih_l0.tolist() == [0] * N + [1] * N + [0] * 2 * N


@pytest.mark.parametrize("held", [parametrizations.orthogonal, parametrizations.schur])
def test_v_takes_a_parametrization(held):
    """RelRNN with the parametrizations of expRNN and of nnRNN."""
    layer, x = build(RelRNN, buffer_size=3, relevant_size=2), inputs()
    held(layer, "weight_hh_l0")
    optimiser = torch.optim.Adam(rnnkern.optim.param_groups(layer, 1e-2))
    for _ in range(3):
        optimiser.zero_grad()
        layer(x)[0].square().sum().backward()
        optimiser.step()
    V = layer.weight_hh_l0
    plain = build(RelRNN, buffer_size=3, relevant_size=2)
    weights = {name: getattr(layer, name) for name in plain.state_dict()}
    plain.load_state_dict(weights)
    assert torch.equal(layer(x)[0], plain(x)[0])
    if held is parametrizations.orthogonal:
        torch.testing.assert_close(V @ V.T, torch.eye(N, dtype=torch.float64))
    layer.reset_parameters()
    assert not torch.allclose(layer.weight_hh_l0, V)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("cls", [rnnkern.nn.RelRNN, rnnkern.nn.MemLSTM])
def test_the_map_has_the_weights_where_the_events_are(cls, batch_first):
    layer = cls(3, 4, batch_first=batch_first)
    first, second = torch.randn(2, 5, 2, 3).unbind(0)
    order = (lambda x: x.transpose(0, 1)) if batch_first else (lambda x: x)
    _, state = layer(order(first))
    for hx, begins in ((None, 0), (state, 5)):
        weights, ids = map(order, layer.attention(order(second), hx))
        alpha = order(layer.attention_map(order(second), hx))
        assert torch.equal(order(layer.attention_map(order(second), hx, sparse=True).to_dense()), alpha)
        for t, b in itertools.product(range(5), range(2)):
            wanted = torch.zeros(5)
            for weight, event in zip(weights[t, b], ids[t, b], strict=True):
                if event >= begins:
                    wanted[event - begins] += weight
            assert torch.equal(alpha[t, b], wanted)
    with pytest.raises(TypeError, match="`input` must be padded"):
        layer.attention_map(torch.nn.utils.rnn.pack_sequence([first[:, 0]]))


@pytest.mark.parametrize("cls", [rnnkern.nn.RelRNN, rnnkern.nn.RelLSTM, rnnkern.nn.SABLSTM])
def test_a_state_of_torch_s_shape_and_what_states_can_do(cls):
    layer, x = cls(3, 4), torch.randn(6, 2, 3)
    parts = torch.randn(1 if cls is rnnkern.nn.RelRNN else 2, 1, 2, 4).unbind(0)
    output, state = layer(x, tuple(part[0] for part in parts))
    assert not torch.allclose(layer(x)[0], output)
    assert torch.equal(layer(x, parts[0] if len(parts) == 1 else parts)[0], output)
    assert torch.equal(layer(x[:, 0], tuple(part[:, 0] for part in parts))[0], output[:, 0])
    assert state[0].requires_grad
    assert not any(p.requires_grad for p in state.detach() if isinstance(p, torch.Tensor))
    wide = state.to(torch.float64)
    assert (wide[0].dtype, wide.time.dtype, wide.to("meta").time.device.type) == (torch.float64, torch.int64, "meta")
    rest, _ = layer(x, state)
    assert torch.equal(layer(x[:, 1:], state.select_batch(slice(1, 2)))[0], rest[:, 1:])
    if state[1] is None:
        with pytest.raises(TypeError, match=r"`state\.select_batch\(index\)`\), got NoneType in a tuple"):
            layer(x[:, 1:], state[1:2])


# ---- SABLSTM


def attending(**options):
    return SABLSTM(I, N, **{"top_k": 2, "attend_every": 2, "dtype": torch.float64} | options)


@pytest.mark.parametrize("alignment", ["separable", "mlp"])
def test_it_is_the_operator_over_a_projection(alignment):
    module, x = attending(alignment=alignment, truncation=3), torch.randn(T, B, I, dtype=torch.float64)
    output, state = module(x)
    weights = [module.weight_score_l0]
    if alignment == "mlp":
        weights.insert(0, module.weight_alignment_l0)
    u = linear(x, module.weight_ih_l0, module.bias_ih_l0)
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
    module, lstm = attending(top_k=1, truncation=100), torch.nn.LSTM(I, N, dtype=torch.float64)
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


def test_attention_says_what_is_attended_to():
    module, x = attending(), torch.randn(T, B, I, dtype=torch.float64)
    weights, slots = module.attention(x)
    assert weights.shape == slots.shape == (T, B, 2)
    assert slots[0].tolist() == [[0, -1]] * B  # a single memory
    assert (slots[4:] >= 0).all()
    assert (slots.amax(-1) <= torch.arange(T).unsqueeze(1) // 2).all()
