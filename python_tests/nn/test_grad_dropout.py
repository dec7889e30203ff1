"""h-detach: the option recurrent_grad_dropout of LSTM."""

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import rnnkern.nn
from rnnkern.ops import recurrence

T, B, I, H = 7, 4, 3, 5  # noqa: E741


def build(*args, **options):
    return rnnkern.nn.LSTM(I, H, *args, dtype=torch.float64, **options)


def twins(rate, *args, **options):
    """Two LSTMs with the same weights, with and without the option."""
    plain = build(*args, **options)
    ours = build(*args, recurrent_grad_dropout=rate, **options)
    ours.load_state_dict(plain.state_dict())
    return ours, plain


def gradients(module, x):
    output, (h, c) = module(x)
    rows = output.data if isinstance(x, torch.nn.utils.rnn.PackedSequence) else output
    loss = rows.square().sum() + h.sin().sum() + c.cos().sum()
    return [output, *torch.autograd.grad(loss, list(module.parameters()))]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_gradients_are_those_of_the_mask_that_torch_draws():
    ours, x = build(recurrent_grad_dropout=0.4), torch.randn(T, B, I, dtype=torch.float64)
    torch.manual_seed(3)
    found = gradients(ours, x)
    torch.manual_seed(3)
    mask = (torch.rand(T) >= 0.4).double()
    assert 0 < mask.sum() < T
    h0 = torch.zeros(B, H, dtype=torch.float64)
    output, (h, c) = recurrence(
        "lstm", x, ours.weight_hh_l0, (h0, h0), bias=ours.bias_hh_l0, weight_ih=ours.weight_ih_l0,
        bias_ih=ours.bias_ih_l0, grad_scale=mask,
    )  # fmt: skip
    loss = output.square().sum() + h.sin().sum() + c.cos().sum()
    assert equal(found, [output, *torch.autograd.grad(loss, list(ours.parameters()))])


def test_at_1_h_is_detached_at_every_step():
    """Compares with a loop over torch.nn's cell that detaches h, as in the paper."""
    ours, x = build(recurrent_grad_dropout=1), torch.randn(T, B, I, dtype=torch.float64)
    cell = torch.nn.LSTMCell(I, H, dtype=torch.float64)
    cell.load_state_dict({name.removesuffix("_l0"): p for name, p in ours.state_dict().items()})
    h = c = torch.zeros(B, H, dtype=torch.float64)
    outputs = []
    for x_t in x:
        h, c = cell(x_t, (h.detach(), c))
        outputs.append(h)
    loss = torch.stack(outputs).square().sum() + h.sin().sum() + c.cos().sum()
    wanted = dict(zip(dict(cell.named_parameters()), torch.autograd.grad(loss, list(cell.parameters())), strict=True))
    found = dict(zip(dict(ours.named_parameters()), gradients(ours, x)[1:], strict=True))
    for name, grad in wanted.items():
        torch.testing.assert_close(found[f"{name}_l0"], grad)


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}, {"layer_norm": True}])
def test_off_in_evaluation_and_at_0(options):
    ours, plain = twins(0.7, **options)
    x = torch.randn(T, B, I, dtype=torch.float64)
    wanted, found = gradients(plain, x), gradients(ours, x)
    torch.testing.assert_close(found[0], wanted[0])  # the forward pass is unchanged
    assert not all(torch.allclose(a, b) for a, b in zip(found, wanted, strict=True))
    assert equal(gradients(ours.eval(), x), wanted)
    never, plain = twins(0.0, **options)
    torch.manual_seed(1)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert equal(gradients(never, x), gradients(plain, x))
    assert torch.equal(torch.rand(1), drawn)


def test_each_direction_draws_for_itself_and_packed_input_has_its_steps():
    ours = build(bidirectional=True, recurrent_grad_dropout=0.5)
    packed = pack_sequence([torch.randn(n, I, dtype=torch.float64) for n in (60, 40, 10)])
    sequence = ours._check(packed, None, None)
    torch.manual_seed(2)
    masks = [ours._noise(sequence)["grad_scale"] for _ in range(2)]
    assert masks[0].shape == (60,)
    assert not torch.equal(*masks)
    torch.manual_seed(2)
    found = gradients(ours, packed)[1:]
    torch.manual_seed(2)
    assert equal(found, gradients(ours, packed)[1:])


def test_with_dropout_of_the_state_and_autocast():
    module = rnnkern.nn.LSTM(I, H, recurrent_dropout=0.3, recurrent_grad_dropout=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = module(torch.randn(T, B, I))
    output.sum().backward()
    assert module.weight_hh_l0.grad.isfinite().all()
