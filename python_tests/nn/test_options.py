"""Options that torch.nn lacks: heads, more nonlinearities, and the reset gate before the product."""

import pytest
import torch

import rnnkern.nn

T, B, I, H = 6, 3, 3, 6  # noqa: E741

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def build(cls, *args, **kwargs):
    return getattr(rnnkern.nn, cls)(*args, dtype=torch.float64, **kwargs)


def block_diagonal(heads, gates):
    """Converts (K, G*D, D) to (G*H, H); unit k*D+d of each gate belongs to head k."""
    count, _, d = heads.shape
    dense = heads.new_zeros(gates, count, d, count, d)
    for g in range(gates):
        for k in range(count):
            dense[g, k, :, k] = heads[k, g * d : (g + 1) * d]
    return dense.reshape(gates * count * d, count * d)


@pytest.mark.parametrize("num_heads", [2, 3, 6])
@pytest.mark.parametrize(
    ("cls", "gates", "options"),
    [
        ("RNN", 1, {"nonlinearity": "relu"}),
        ("RNN", 1, {"nonlinearity": "modrelu"}),
        ("LSTM", 4, {}),
        ("GRU", 3, {}),
        ("GRU", 3, {"reset_gate": "before", "bias": False}),
    ],
)
def test_heads_are_a_block_diagonal_matrix(cls, gates, options, num_heads):
    heads = build(cls, I, H, 2, bidirectional=True, num_heads=num_heads, **options)
    dense = build(cls, I, H, 2, bidirectional=True, **options)
    d = H // num_heads
    assert heads.weight_hh_l1_reverse.shape == (num_heads, gates * d, d)
    assert heads.weight_hh_l1_reverse.is_contiguous()
    dense.load_state_dict(
        {n: block_diagonal(p, gates) if n.startswith("weight_hh") else p for n, p in heads.state_dict().items()}
    )
    x, reset = torch.randn(T, B, I, dtype=torch.float64), torch.rand(T, B) < 0.3
    output, wanted = heads(x, reset=reset)[0], dense(x, reset=reset)[0]
    torch.testing.assert_close(output, wanted, **CLOSE)
    weight = torch.randn_like(wanted)
    grads, wanted_grads = (
        torch.autograd.grad((y * weight).sum(), m.parameters()) for y, m in ((output, heads), (wanted, dense))
    )
    for (name, _), ours, theirs in zip(heads.named_parameters(), grads, wanted_grads, strict=True):
        if name.startswith("weight_hh"):
            inside = block_diagonal(torch.ones_like(ours), gates)
            ours, theirs = block_diagonal(ours, gates), theirs * inside
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_heads_are_drawn_as_torch_draws_weights():
    torch.manual_seed(1)
    dense, following = build("LSTM", 4, 64), torch.rand(1)
    torch.manual_seed(1)
    heads = build("LSTM", 4, 64, num_heads=4)
    assert torch.equal(following, torch.rand(1))
    assert torch.equal(heads.bias_hh_l0, dense.bias_hh_l0)
    weight = heads.weight_hh_l0.detach()
    assert weight.abs().max() <= 64**-0.5
    assert abs(weight.std() * 64**0.5 - 3**-0.5) < 0.02
    assert weight.unique().numel() == weight.numel()
    heads.reset_parameters()
    assert heads.weight_hh_l0.shape == (4, 64, 16)


@pytest.mark.parametrize(
    ("cls", "kwargs", "kind", "words"),
    [
        ("LSTM", {"num_heads": 4}, ValueError, "num_heads must be positive and divide hidden_size = 6, got 4"),
        ("GRU", {"num_heads": 0}, ValueError, "num_heads .* got 0"),
        ("RNN", {"num_heads": -2}, ValueError, "num_heads .* got -2"),
        ("RNN", {"num_heads": 2.0}, TypeError, "num_heads should be of type int, got: float"),
        ("RNN", {"num_heads": True}, TypeError, "num_heads should be of type int, got: bool"),
        ("LSTM", {"num_heads": 2, "proj_size": 4}, ValueError, "num_heads must be 1 with proj_size = 4 > 0, got 2"),
        ("GRU", {"reset_gate": "Before"}, ValueError, "reset_gate must be 'after' or 'before', got 'Before'"),
        ("RNN", {"nonlinearity": "gelu"}, ValueError, "Unknown nonlinearity 'gelu'. Select from .*'modrelu'"),
        ("LSTM", {"nonlinearity": "tanh"}, TypeError, "nonlinearity"),
        ("LSTM", {"reset_gate": "after"}, TypeError, "reset_gate"),
    ],
)
def test_wrong_options(cls, kwargs, kind, words):
    with pytest.raises(kind, match=words):
        build(cls, I, H, **kwargs)


def loop(module, x, h, step, k=0):
    """A simple loop for one layer and direction of a module without heads."""
    W, R, b, c = (getattr(module, f"{n}_l{k}") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    outputs = []
    for x_t in x:
        h = step(x_t @ W.T + b, h, R, c)
        outputs.append(h)
    return torch.stack(outputs)


def modrelu(z, bias):
    return torch.where(z.abs() + bias > 0, z + bias * z.sign(), 0)


@pytest.mark.parametrize("position", ["keyword", "fourth"])
@pytest.mark.parametrize("name", ["identity", "hardtanh", "modrelu"])
def test_nonlinearities(name, position):
    if position == "fourth":
        rnn = build("RNN", I, H, 2, name, True, False, 0.0, False)
    else:
        rnn = build("RNN", I, H, num_layers=2, nonlinearity=name)
    assert rnn.nonlinearity == name
    with torch.no_grad():
        for p in rnn.parameters():
            p.uniform_(-0.6, 0.6)
    phi = {"identity": lambda z, k: z, "hardtanh": lambda z, k: z.clamp(-1, 1)}.get(
        name, lambda z, k: modrelu(z, getattr(rnn, f"modrelu_bias_l{k}"))
    )
    x, h0 = torch.randn(T, B, I, dtype=torch.float64), torch.randn(2, B, H, dtype=torch.float64)
    wanted = x
    for k in range(2):
        wanted = loop(rnn, wanted, h0[k], lambda u, h, R, c, k=k: phi(u + h @ R.T + c, k), k)
    output, h_n = rnn(x, h0)
    torch.testing.assert_close(output, wanted, **CLOSE)
    torch.testing.assert_close(h_n[1], wanted[-1], **CLOSE)
    weight = torch.randn_like(wanted)
    grads, wanted_grads = (torch.autograd.grad((y * weight).sum(), rnn.parameters()) for y in (output, wanted))
    for ours, theirs in zip(grads, wanted_grads, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_modrelu_bias_is_drawn_last_and_small():
    torch.manual_seed(1)
    theirs = torch.nn.RNN(I, 64, 2, bidirectional=True)
    torch.manual_seed(1)
    rnn = rnnkern.nn.RNN(I, 64, 2, "modrelu", bidirectional=True)
    names = [f"modrelu_bias_l{k}{suffix}" for k in (0, 1) for suffix in ("", "_reverse")]
    assert [n for n, _ in rnn.named_parameters()] == [*(n for n, _ in theirs.named_parameters()), *names]
    for name, p in theirs.named_parameters():
        assert torch.equal(getattr(rnn, name), p)
    for _ in range(2):
        for name in names:
            bias = getattr(rnn, name)
            assert bias.shape == (64,)
            assert 0.005 < bias.abs().max() <= 0.01
        rnn.reset_parameters()


def test_gru_with_the_reset_gate_before_the_product():
    gru = build("GRU", I, H, reset_gate="before")

    def step(u, h, R, c):
        (u_r, u_z, u_n), (R_r, R_z, R_n), (c_r, c_z, c_n) = (v.split(H, dim) for v, dim in ((u, -1), (R, 0), (c, 0)))
        r, z = torch.sigmoid(u_r + h @ R_r.T + c_r), torch.sigmoid(u_z + h @ R_z.T + c_z)
        return (1 - z) * torch.tanh(u_n + (r * h) @ R_n.T + c_n) + z * h

    x, h0 = torch.randn(T, B, I, dtype=torch.float64), torch.randn(1, B, H, dtype=torch.float64)
    wanted = loop(gru, x, h0[0], step)
    torch.testing.assert_close(gru(x, h0)[0], wanted, **CLOSE)
    after = build("GRU", I, H, reset_gate="after")
    after.load_state_dict(gru.state_dict())
    assert (after(x, h0)[0] - wanted).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (lambda: build("RNN", I, H), "3, 6"),
        (lambda: build("RNN", I, H, nonlinearity="modrelu", num_heads=2), "3, 6, num_heads=2, nonlinearity=modrelu"),
        (lambda: build("LSTM", I, H, 2, proj_size=2), "3, 6, proj_size=2, num_layers=2"),
        (lambda: build("GRU", I, H, batch_first=True, num_heads=3), "3, 6, batch_first=True, num_heads=3"),
        (lambda: build("GRU", I, H, reset_gate="before"), "3, 6, reset_gate=before"),
    ],
)
def test_extra_repr(module, words):
    assert module().extra_repr() == words


@pytest.mark.skipif(not rnnkern._extension.available, reason="the reference keeps what autograd records")
@pytest.mark.parametrize(
    ("cls", "options", "values"),
    [("LSTM", {}, 4), ("GRU", {}, 4), ("LSTM", {"layer_norm": True}, 4), ("GRU", {"layer_norm": True}, 3)],
)
def test_save_gates_keeps_as_many_values_as_documented(cls, options, values):
    def kept(save_gates):
        tensors, module.save_gates = {}, save_gates
        with torch.autograd.graph.saved_tensors_hooks(lambda t: tensors.setdefault(t.data_ptr(), t), lambda t: t):
            output, _ = module(x)
        return sum(t.numel() for t in tensors.values()), torch.autograd.grad(output.sum(), list(module.parameters()))

    x, module = torch.randn(50, B, I, dtype=torch.float64), build(cls, I, H, **options)
    (more, wanted), (less, found) = kept(True), kept(False)
    torch.testing.assert_close(found, wanted, **CLOSE)
    assert more - less == values * 50 * B * H
