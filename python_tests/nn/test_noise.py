"""Options that draw in training: zoneout, recurrent dropout, and h-detach (recurrent_grad_dropout)."""

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import rnnkern.nn
from python_tests.samples.layers import same
from rnnkern.ops import recurrence

T, B, I, H = 7, 4, 3, 6  # noqa: E741
F64 = torch.float64
NOISE = {"zoneout": 0.3, "recurrent_dropout": 0.4}
MODULES = [("RNN", {"nonlinearity": "modrelu"}), ("LSTM", {}), ("GRU", {}), ("GRU", {"reset_gate": "before"})]


def build(cls, *args, **options):
    return getattr(rnnkern.nn, cls)(I, H, *args, dtype=F64, **options)


@pytest.mark.parametrize(("cls", "options"), MODULES)
def test_training_draws_and_evaluation_takes_the_mean(cls, options):
    module, x = build(cls, **NOISE, **options), torch.randn(T, B, I, dtype=F64)
    first, second = module(x)[0], module(x)[0]
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    first = module(x)[0]
    torch.manual_seed(1)
    assert torch.equal(first, module(x)[0])
    module.eval()
    assert torch.equal(module(x)[0], module(x)[0])
    call = module._calls(module._check(x, None, None))[0][0]
    assert call["zoneout"] == 0.3
    wanted, _ = recurrence(module._cell, x, **{**call, "seed": None, "dropout": 0.0})
    assert torch.equal(module(x)[0], wanted)
    module.zoneout = 0.0
    plain = build(cls, **options)
    plain.load_state_dict(module.state_dict())
    assert torch.equal(module(x)[0], plain(x)[0])


@pytest.mark.parametrize(("cls", "options"), MODULES)
def test_training_is_the_operator_with_the_seeds_that_torch_draws(cls, options):
    module, x = build(cls, bidirectional=True, **NOISE, **options), torch.randn(T, B, I, dtype=F64)
    torch.manual_seed(3)
    output, _ = module(x)
    torch.manual_seed(3)
    seeds = [torch.randint(-(2**63), 2**63 - 1, ()) for _ in range(2)]
    assert seeds[0] != seeds[1]
    calls = module._calls(module._check(x, None, None))[0]
    wanted = [
        recurrence(module._cell, x, **call, seed=seed, reverse=reverse)[0]
        for call, seed, reverse in zip(calls, seeds, (False, True), strict=True)
    ]
    assert torch.equal(output, torch.cat(wanted, dim=-1))


def test_one_rate_for_each_state_of_an_lstm():
    h_alone, x = build("LSTM", zoneout=(0.9, 0.0)), torch.zeros(1, 200, I, dtype=F64)
    state = tuple(torch.full((1, 200, H), 7.0, dtype=F64) for _ in range(2))
    _, (h_n, c_n) = h_alone(x, state)
    assert 0.8 < (h_n == 7).double().mean() < 0.97
    assert not (c_n == 7).any()


def test_all_at_once_under_autocast():
    module, x = rnnkern.nn.LSTM(I, H, recurrent_grad_dropout=0.5, **NOISE), torch.randn(T, B, I)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = module(x)
    assert output.dtype == torch.bfloat16
    output.sum().backward()
    assert module.weight_hh_l0.grad.dtype == torch.float32
    assert module.weight_hh_l0.grad.isfinite().all()


def test_compiled():
    module, x = rnnkern.nn.LSTM(I, H, **NOISE), torch.randn(T, B, I)
    compiled = torch.compile(lambda x: module(x)[0], backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.manual_seed(6)
        output = compiled(x)
        (grad,) = torch.autograd.grad(output.sum(), module.weight_hh_l0)
    torch.manual_seed(6)
    wanted = module(x)[0]
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(grad, torch.autograd.grad(wanted.sum(), module.weight_hh_l0)[0])


# ---- h-detach


def twins(rate, *args, **options):
    """Two LSTMs with the same weights, with and without the option."""
    plain = build("LSTM", *args, **options)
    ours = build("LSTM", *args, recurrent_grad_dropout=rate, **options)
    ours.load_state_dict(plain.state_dict())
    return ours, plain


def gradients(module, x):
    output, (h, c) = module(x)
    rows = output.data if isinstance(x, torch.nn.utils.rnn.PackedSequence) else output
    loss = rows.square().sum() + h.sin().sum() + c.cos().sum()
    return [output, *torch.autograd.grad(loss, list(module.parameters()))]


def test_gradients_are_those_of_the_mask_that_torch_draws():
    ours, x = build("LSTM", recurrent_grad_dropout=0.4), torch.randn(T, B, I, dtype=F64)
    torch.manual_seed(3)
    found = gradients(ours, x)
    torch.manual_seed(3)
    mask = (torch.rand(T) >= 0.4).double()
    assert 0 < mask.sum() < T
    h0 = torch.zeros(B, H, dtype=F64)
    output, (h, c) = recurrence(
        "lstm", x, ours.weight_hh_l0, (h0, h0), bias=ours.bias_hh_l0, weight_ih=ours.weight_ih_l0,
        bias_ih=ours.bias_ih_l0, grad_scale=mask,
    )  # fmt: skip
    loss = output.square().sum() + h.sin().sum() + c.cos().sum()
    assert same(found, [output, *torch.autograd.grad(loss, list(ours.parameters()))])


def test_at_1_h_is_detached_at_every_step():
    """Compares with a loop over torch.nn's cell that detaches h, as in the paper."""
    ours, x = build("LSTM", recurrent_grad_dropout=1), torch.randn(T, B, I, dtype=F64)
    cell = torch.nn.LSTMCell(I, H, dtype=F64)
    cell.load_state_dict({name.removesuffix("_l0"): p for name, p in ours.state_dict().items()})
    h = c = torch.zeros(B, H, dtype=F64)
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
    x = torch.randn(T, B, I, dtype=F64)
    wanted, found = gradients(plain, x), gradients(ours, x)
    torch.testing.assert_close(found[0], wanted[0])  # the forward pass is unchanged
    assert not all(torch.allclose(a, b) for a, b in zip(found, wanted, strict=True))
    assert same(gradients(ours.eval(), x), wanted)
    never, plain = twins(0.0, **options)
    torch.manual_seed(1)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert same(gradients(never, x), gradients(plain, x))
    assert torch.equal(torch.rand(1), drawn)


def test_each_direction_draws_for_itself_and_packed_input_has_its_steps():
    ours = build("LSTM", bidirectional=True, recurrent_grad_dropout=0.5)
    packed = pack_sequence([torch.randn(n, I, dtype=F64) for n in (60, 40, 10)])
    sequence = ours._check(packed, None, None)
    torch.manual_seed(2)
    masks = [ours._noise(sequence)["grad_scale"] for _ in range(2)]
    assert masks[0].shape == (60,)
    assert not torch.equal(*masks)
    torch.manual_seed(2)
    found = gradients(ours, packed)[1:]
    torch.manual_seed(2)
    assert same(found, gradients(ours, packed)[1:])
