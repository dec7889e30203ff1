"""Unitary networks against the loop that their equations are, and as modules."""

import pytest
import torch

import rnnkern
from rnnkern.nn import UnitaryRNN
from rnnkern.optim import CayleySGD, param_groups

T, B, I, H = 6, 3, 2, 4  # noqa: E741
F64, C128 = torch.float64, torch.complex128
MAPS = [{"map": "fourier"}, {"map": "givens", "rotation_layers": 3}, {"map": "free"}]
maps = pytest.mark.parametrize("options", MAPS, ids=str)


def loop(module, x, h0=None, reset=None):
    finals = []
    for layer in range(module.num_layers):
        W, R, b = (getattr(module, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "modrelu_bias"))
        W = torch.complex(W[::2], W[1::2])
        h = torch.zeros(x.shape[1], H, dtype=C128) if h0 is None else h0[layer]
        outputs = []
        for t, x_t in enumerate(x):
            if reset is not None:
                h = torch.where(reset[t, :, None], 0, h)
            z = x_t.to(C128) @ W.mT + h @ R.mT
            h = z / z.abs() * torch.relu(z.abs() + b)
            outputs.append(torch.stack([h.real, h.imag], -1).flatten(-2))
        x = torch.stack(outputs)
        finals.append(h)
    return x, torch.stack(finals)


@maps
def test_as_the_loop(options):
    module = UnitaryRNN(I, H, 2, dtype=F64, **options)
    x, h0, reset = torch.randn(T, B, I, dtype=F64), torch.randn(2, B, H, dtype=C128), torch.rand(T, B) < 0.3
    (output, h_n), (wanted, last) = module(x, h0, reset), loop(module, x, h0, reset)
    torch.testing.assert_close((output, h_n), (wanted, last))
    parameters = list(module.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(output.sin().sum() + h_n.real.sum(), parameters),
        torch.autograd.grad(wanted.sin().sum() + last.real.sum(), parameters),
    )


def test_layouts():
    module = UnitaryRNN(I, H, dtype=F64)
    x = torch.randn(T, B, I, dtype=F64)
    output, h_n = module(x)
    assert module.output_size == output.shape[-1] == 2 * H
    one, last = module(x[:, 0])
    torch.testing.assert_close((one, last), (output[:, 0], h_n[:, 0]))
    _, last = module(x[:2])
    torch.testing.assert_close(module(x[2:], last)[0], output[2:])
    module.batch_first = True
    torch.testing.assert_close(module(x.transpose(0, 1))[0], output.transpose(0, 1))
    assert module(x[:0].transpose(0, 1))[0].shape == (B, 0, 2 * H)


@maps
def test_training_keeps_it_unitary_and_learns(options):
    """The sum of inputs of the past, from the parts of h."""
    torch.manual_seed(0)
    module = UnitaryRNN(1, 8, **options)
    head = torch.nn.Linear(16, 1)
    model = torch.nn.ModuleList([module, head])
    groups = param_groups(model, 0.02)
    if options["map"] == "free":
        groups = [{"params": [p for p in model.parameters() if p is not module.weight_hh_l0], "lr": 0.02}]
        optimisers = [CayleySGD([module.weight_hh_l0], 0.02)]
    else:
        optimisers = []
    optimisers.append(torch.optim.Adam(groups))
    x = torch.randn(4, 64, 1)
    losses = []
    for _ in range(100):
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss = (head(module(x)[0][-1]) - x.sum(0)).square().mean()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]
    W = module.weight_hh_l0.detach().to(C128)
    assert (W.mH @ W - torch.eye(8, dtype=C128)).abs().max() < 2e-6


def test_fresh_values():
    for options in MAPS:
        module = UnitaryRNN(I, H, **options)
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        module.reset_parameters()
        assert all(not torch.equal(p, before[name]) for name, p in module.named_parameters())
        assert module.modrelu_bias_l0.abs().max() <= 0.01
    assert "map=givens" in repr(UnitaryRNN(I, H, map="givens"))


def test_wrong_arguments():
    for arguments, options, said in (
        ((0, H), {}, "`input_size` must be a positive number, got 0"),
        ((I, H), {"map": "exp"}, "`map` must be one of"),
        ((I, H), {"style": "butterfly"}, "`style` is for the map 'givens' alone, got 'butterfly'"),
    ):
        with pytest.raises(ValueError, match=said):
            UnitaryRNN(*arguments, **options)
    module = UnitaryRNN(I, H)
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(T, I)])
    for x, hx, kind, said in (
        (packed, None, TypeError, "`input` must be a tensor, got PackedSequence"),
        (torch.zeros(T, B, I, dtype=F64), None, TypeError, "`input` must be of dtype torch.float32"),
        (torch.zeros(T, B, I + 1), None, ValueError, r"`input` must be \(T, B, 2\).* got \(6, 3, 3\)"),
        (torch.zeros(T, B, I), torch.zeros(B, H), ValueError, r"`hx` must be \(1, 3, 4\), got \(3, 4\)"),
        (torch.zeros(T, B, I), torch.zeros(1, B, H), TypeError, "`hx` must be of dtype torch.complex64"),
    ):
        with pytest.raises(kind, match=said):
            module(x, hx)


def test_it_has_no_network_of_torch_to_replace():
    model = torch.nn.ModuleList([UnitaryRNN(I, H)])
    rnnkern.replace(model)
    assert isinstance(model[0], UnitaryRNN)
