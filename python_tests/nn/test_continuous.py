"""ContinuousRNN with gaps, the durations of its steps. Without them it is in test_equations.py."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from rnnkern.nn import ContinuousRNN

T, B, I, H = 9, 3, 4, 6  # noqa: E741
F64 = torch.float64


def layer(**options):
    return ContinuousRNN(I, H, **{"dtype": F64} | options)


def drawn(*shape):
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def gap_loop(module, x, h, gaps, starts):
    """One sequence, from the equations."""
    outputs, W = [], module.weight_hh_l0
    for x_t, gap, start in zip(x, gaps, starts, strict=True):
        h = torch.zeros_like(h) if start else h
        u = torch.nn.functional.linear(x_t, module.weight_ih_l0, module.bias_ih_l0)
        if module.nonlinearity == "identity":
            h = torch.exp(W * gap) * h + torch.expm1(W * gap) / W * u
        else:
            for _ in range(module.steps):
                h = h + gap / module.steps * torch.tanh(u + W @ h)
        outputs.append(h)
    return torch.stack(outputs)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("nonlinearity", "steps"), [("tanh", 1), ("tanh", 3), ("identity", 1)])
def test_gaps_are_the_durations_of_steps(nonlinearity, steps, packed):
    module, x, h0 = layer(nonlinearity=nonlinearity, steps=steps), torch.randn(T, B, I, dtype=F64), drawn(B, H)
    gaps, starts, lengths = torch.rand(T, B, dtype=F64), torch.rand(T, B) < 0.2, [5, 9, 7] if packed else [T] * B
    gaps.requires_grad_()
    given = pack_padded_sequence(x, lengths, enforce_sorted=False) if packed else x
    output, state = module(given, h0, starts, gaps)
    output = pad_packed_sequence(output)[0] if packed else output
    wanted = [gap_loop(module, x[:n, b], h0[b], gaps[:n, b], starts[:n, b]) for b, n in enumerate(lengths)]
    for b, n in enumerate(lengths):
        torch.testing.assert_close(output[:n, b], wanted[b], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state[b], wanted[b][-1], rtol=1e-12, atol=1e-12)
    leaves = [h0, gaps, *module.parameters()]
    found = torch.autograd.grad(sum(output[:n, b].square().sum() for b, n in enumerate(lengths)), leaves)
    torch.testing.assert_close(found, torch.autograd.grad(sum(y.square().sum() for y in wanted), leaves))


@pytest.mark.parametrize("nonlinearity", ["tanh", "identity"])
def test_facts_of_gaps(nonlinearity):
    module, x, h0 = layer(nonlinearity=nonlinearity, dt=0.3), torch.randn(T, B, I, dtype=F64), drawn(B, H)
    ones = torch.ones(T, B, dtype=F64)
    torch.testing.assert_close(module(x, h0, gaps=0.3 * ones), module(x, h0), rtol=1e-13, atol=1e-13)
    output, state = module(x, h0, gaps=0 * ones)
    assert torch.equal(state, h0)
    assert torch.equal(output, h0.expand(T, B, H))
    if nonlinearity == "identity":  # two halves of a gap are the whole
        half, _ = module(x.repeat_interleave(2, 0), h0, gaps=0.15 * ones.repeat_interleave(2, 0))
        torch.testing.assert_close(half[1::2], module(x, h0)[0], rtol=1e-14, atol=1e-14)
    first = layer(nonlinearity=nonlinearity, dt=0.3, batch_first=True)
    first.load_state_dict(module.state_dict())
    gaps = torch.rand(T, B, dtype=F64)
    wanted = module(x, h0, gaps=gaps)[0]
    torch.testing.assert_close(first(x.transpose(0, 1), h0, gaps=gaps.T)[0].transpose(0, 1), wanted)
    torch.testing.assert_close(module(x[:, 1], h0[1], gaps=gaps[:, 1])[0], wanted[:, 1])
    for wrong, error, said in (
        (-ones, ValueError, "`gaps` must be at least 0 and finite, got -1.0"),
        (ones * torch.nan, ValueError, "`gaps` must be at least 0 and finite, got nan"),
        (ones / 0, ValueError, "`gaps` must be at least 0 and finite, got inf"),
        (ones[1:], ValueError, r"`gaps` must be \(T, B\) = \(9, 3\), got \(8, 3\)"),
        (ones.to("meta"), TypeError, "^ContinuousRNN: `gaps` must be on cpu like the input, got meta"),
        (ones.float(), TypeError, r"`gaps` must be a tensor with dtype torch\.float64, got torch\.float32"),
        (1.0, TypeError, "got float"),
    ):
        with pytest.raises(error, match=said):
            module(x, gaps=wrong)
    with pytest.raises(ValueError, match="`gaps` need method='euler', got method='adams'"):
        layer(method="adams")(x, gaps=ones)
