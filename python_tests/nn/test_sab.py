"""SABLSTM is its operator over a projection, an LSTM where nothing is attended to, and says what is."""

import pytest
import torch

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


def test_attention_says_what_is_attended_to():
    module, x = layer(), torch.randn(T, B, I, dtype=torch.float64)
    weights, slots = module.attention(x)
    assert weights.shape == slots.shape == (T, B, 2)
    assert slots[0].tolist() == [[0, -1]] * B  # a single memory
    assert (slots[4:] >= 0).all()
    assert (slots.amax(-1) <= torch.arange(T).unsqueeze(1) // 2).all()
