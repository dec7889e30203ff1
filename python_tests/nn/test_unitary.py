"""Unitary networks against loops over their equations, and as modules."""

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

import rnnkern
from rnnkern.nn import UnitaryRNN
from rnnkern.optim import CayleySGD, param_groups

T, B, I, H = 6, 3, 2, 4  # noqa: E741
F64, C128 = torch.float64, torch.complex128
MAPS = [
    {"unitary_map": "fourier"}, {"unitary_map": "givens", "rotation_layers": 3}, {"unitary_map": "free"},
    {"unitary_map": "exp"}, {"unitary_map": "scaled_cayley", "base": "dynamic"},
]  # fmt: skip
maps = pytest.mark.parametrize("options", MAPS, ids=str)


def one_way(module, end, x, h, reset):
    W, R, b = (getattr(module, f"{name}_{end}") for name in ("weight_ih", "weight_hh", "modrelu_bias"))
    W, outputs = torch.complex(W[::2], W[1::2]), []
    for t, x_t in enumerate(x):
        h = torch.where(reset[t, :, None], 0, h)
        z = x_t.to(C128) @ W.mT + h @ R.mT
        h = z / z.abs() * torch.relu(z.abs() + b)
        outputs.append(torch.stack([h.real, h.imag], -1).flatten(-2))
    return torch.stack(outputs), h


def loop(module, x, h0, reset):
    """The loop over time. In the reverse direction a step takes its state from the next one, so an episode that starts
    there ends here."""
    ends_here, rows, finals = torch.cat([reset[1:], torch.zeros_like(reset[:1])]), iter(h0), []
    for layer in range(module.num_layers):
        output, final = one_way(module, f"l{layer}", x, next(rows), reset)
        finals.append(final)
        if module.bidirectional:
            back, final = one_way(module, f"l{layer}_reverse", x.flip(0), next(rows), ends_here.flip(0))
            output = torch.cat([output, back.flip(0)], -1)
            finals.append(final)
        x = output
    return x, torch.stack(finals)


@maps
@pytest.mark.parametrize("bidirectional", [False, True])
def test_as_the_loop(options, bidirectional):
    module = UnitaryRNN(I, H, 2, bidirectional=bidirectional, dtype=F64, **options)
    rows = 4 if bidirectional else 2
    x, h0, reset = torch.randn(T, B, I, dtype=F64), torch.randn(rows, B, H, dtype=C128), torch.rand(T, B) < 0.3
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
    torch.testing.assert_close(module(x[2:, 0], last[:, 0])[0], output[2:, 0])
    module.batch_first = True
    torch.testing.assert_close(module(x.transpose(0, 1))[0], output.transpose(0, 1))
    assert module(x[:0].transpose(0, 1))[0].shape == (B, 0, 2 * H)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_is_each_sequence_alone(bidirectional, batch_first):
    """In the caller's batch order, with states and resets; compares values and gradients."""
    module = UnitaryRNN(I, H, 2, bidirectional=bidirectional, batch_first=batch_first, dtype=F64)
    rows, lengths = 4 if bidirectional else 2, (3, 6, 1, 4)
    sequences = [torch.randn(length, I, dtype=F64, requires_grad=True) for length in lengths]
    h0 = torch.randn(rows, len(lengths), H, dtype=C128, requires_grad=True)
    reset = torch.rand(max(lengths), len(lengths)) < 0.3
    packed = pack_sequence(sequences, enforce_sorted=False)
    output, h_n = module(packed, h0, reset.T if batch_first else reset)
    assert torch.equal(output.batch_sizes, packed.batch_sizes)
    alone = [module(x, h0[:, k], reset[: len(x), k]) for k, x in enumerate(sequences)]
    wanted = (*(output for output, _ in alone), torch.stack([last for _, last in alone], 1))
    found = (*unpack_sequence(output), h_n)
    torch.testing.assert_close(found, wanted)
    leaves = [*sequences, h0, *module.parameters()]
    upstream = [torch.randn_like(y) for y in wanted]
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, upstream), torch.autograd.grad(wanted, leaves, upstream)
    )
    output, h_n = module(packed)
    torch.testing.assert_close(h_n, module(packed, torch.zeros_like(h0))[1])


def test_explain_and_autocast():
    module = UnitaryRNN(I, H, 2, bidirectional=True)
    x = torch.randn(T, B, I)
    assert len(rnnkern.ops.explain(module, x)) == 4
    with torch.autocast("cpu"):
        output, h_n = module(x)
    assert (output.dtype, h_n.dtype) == (torch.float32, torch.complex64)
    torch.testing.assert_close(output, module(x)[0], rtol=0, atol=0.1)


@maps
def test_training_keeps_it_unitary_and_learns(options):
    """The target is a sum of past inputs, predicted from the real and imaginary parts of h."""
    torch.manual_seed(0)
    module = UnitaryRNN(1, 8, **options)
    head = torch.nn.Linear(16, 1)
    model = torch.nn.ModuleList([module, head])
    groups = param_groups(model, 0.02)
    if options["unitary_map"] == "free":
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
        names = [name for name, p in module.named_parameters() if p.any()]  # A starts at zero, and B is a buffer
        before = {name: module.get_parameter(name).detach().clone() for name in names}
        weight = module.weight_hh_l0.detach().clone()
        module.reset_parameters()
        assert not torch.equal(module.weight_hh_l0, weight)
        assert all(not torch.equal(module.get_parameter(name), old) for name, old in before.items())
        assert module.modrelu_bias_l0.abs().max() <= 0.01
    module = UnitaryRNN(I, H, 2, unitary_map="givens", bidirectional=True)
    assert "2, 4, num_layers=2, unitary_map=givens, bidirectional=True\n" in repr(module)


def test_wrong_arguments():
    for arguments, options, kind, said in (
        ((0, H), {}, ValueError, "input_size must be at least 1, got 0"),
        ((I, 4.0), {}, TypeError, "hidden_size should be of type int, got: float"),
        ((I, H), {"unitary_map": "log"}, ValueError, "unitary_map must be one of"),
        ((I, H), {"unitary_map": "free", "base": "dynamic"}, ValueError, "do not apply to the map 'free'"),
        ((I, H), {"style": "butterfly"}, ValueError, "`style` applies only to the map 'givens', got 'butterfly'"),
    ):
        with pytest.raises(kind, match=said):
            UnitaryRNN(*arguments, **options)
    module = UnitaryRNN(I, H)
    packed = pack_sequence([torch.zeros(1, I), torch.zeros(T, I)], enforce_sorted=False)
    for x, hx, kind, said in (
        ([0.0], None, TypeError, "`input` must be a tensor or a PackedSequence, got list"),
        (torch.zeros(T, B, I, dtype=F64), None, TypeError, "dtype of the parameters, torch.float32"),
        (torch.zeros(T, B, I + 1), None, ValueError, r"`input` must be \(T, B, 2\).* got \(6, 3, 3\)"),
        (torch.zeros(T, B, I), torch.zeros(B, H), ValueError, r"`hx` must be \(1, 3, 4\), got \(3, 4\)"),
        (packed, torch.zeros(1, 1, H), ValueError, r"`hx` must be \(1, 2, 4\), got \(1, 1, 4\)"),
        (torch.zeros(T, I), torch.zeros(1, 1, H), ValueError, r"`hx` must be \(1, 4\), got \(1, 1, 4\)"),
        (torch.zeros(T, B, I), torch.zeros(1, B, H), TypeError, "`hx` must be of dtype torch.complex64"),
        (torch.zeros(T, B, I), [0.0], TypeError, "`hx` must be a tensor, got list"),
    ):
        with pytest.raises(kind, match=said):
            module(x, hx)


def test_it_has_no_network_of_torch_to_replace():
    model = torch.nn.ModuleList([UnitaryRNN(I, H)])
    rnnkern.replace(model)
    assert isinstance(model[0], UnitaryRNN)
