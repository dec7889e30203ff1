"""Options that torch.nn lacks: heads, more nonlinearities, and the reset gate before the product."""

import pytest
import torch

import rnnkern.nn

T, B, I, H = 6, 3, 3, 6  # noqa: E741

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def build(cls, *args, **kwargs):
    return getattr(rnnkern.nn, cls)(*args, dtype=torch.float64, **kwargs)


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
