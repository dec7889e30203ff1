"""ContinuousRNN: its differential equation, layouts, state, resets, and general behavior of modules."""

import copy
import pickle

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnkern
from rnnkern.nn import ContinuousRNN
from rnnkern.testing import assert_close

T, B, I, H = 9, 3, 4, 6  # noqa: E741
F64 = torch.float64
forms = pytest.mark.parametrize("nonlinearity", ["tanh", "identity"])


def layer(**options):
    return ContinuousRNN(I, H, **{"dtype": F64} | options)


def loop(module, x, h, starts=None):
    """A loop over time with Euler steps, or with the exponential of the linear system for a constant x."""
    W, outputs = module.weight_hh_l0, []
    for t, x_t in enumerate(x):
        h = h if starts is None else torch.where(starts[t, :, None], 0, h)
        u = torch.nn.functional.linear(x_t, module.weight_ih_l0, module.bias_ih_l0)
        if W.dim() == 2:
            h = h + module.dt * torch.tanh(u + h @ W.mT)
        else:  # d/dt (h, 1) = (W, u; 0, 0) (h, 1)
            zero = torch.zeros_like(u).unsqueeze(-2)
            top = torch.cat([torch.diag(W).expand(len(u), H, H), u.unsqueeze(-1)], -1)
            bottom = torch.cat([zero, zero[..., :1]], -1)
            step = torch.linalg.matrix_exp(module.dt * torch.cat([top, bottom], -2))
            h = (step[:, :H, :H] @ h.unsqueeze(-1)).squeeze(-1) + step[:, :H, H]
        outputs.append(h)
    return torch.stack(outputs), h


@forms
@pytest.mark.parametrize("stable_map", ["exp", "softplus", "inverse", "direct"])
def test_values_and_gradients_are_those_of_the_loop(nonlinearity, stable_map):
    module = layer(
        nonlinearity=nonlinearity, stable_map=stable_map, dt=0.7, bias=stable_map != "exp", timescales=(1.0, 4.0)
    )
    x, h0 = torch.randn(T, B, I, dtype=F64, requires_grad=True), torch.randn(B, H, dtype=F64, requires_grad=True)
    starts = torch.rand(T, B) < 0.2
    found, wanted = module(x, h0, starts), loop(module, x, h0, starts)
    torch.testing.assert_close(found, wanted)
    leaves, weight = [x, h0, *module.parameters()], torch.randn(T, B, H, dtype=F64)
    grads = [torch.autograd.grad((y * weight).sum() + last.sum(), leaves) for y, last in (found, wanted)]
    torch.testing.assert_close(*grads)


@forms
def test_in_float32_it_is_as_close_as_the_loop(nonlinearity):
    module, x = layer(nonlinearity=nonlinearity), torch.randn(100, B, I, dtype=F64)
    truth, _ = loop(module, x, x.new_zeros(B, H))
    module.float()
    x = x.float()
    assert_close(module(x)[0], loop(module, x, x.new_zeros(B, H))[0], truth, "output")


def test_half_steps_of_the_linear_form_are_the_whole_step():
    """The discretization is exact: for an input that is constant over two steps, dt can be doubled."""
    fine, coarse = layer(nonlinearity="identity", dt=3.0), layer(nonlinearity="identity", dt=6.0)
    coarse.load_state_dict(fine.state_dict())
    x = torch.randn(T, B, I, dtype=F64)
    torch.testing.assert_close(fine(x.repeat_interleave(2, 0))[0][1::2], coarse(x)[0])


@forms
def test_layouts_are_the_same_call(nonlinearity):
    x, starts, h0 = torch.randn(T, B, I, dtype=F64), torch.rand(T, B) < 0.2, torch.randn(B, H, dtype=F64)
    module, first = layer(nonlinearity=nonlinearity), layer(nonlinearity=nonlinearity, batch_first=True)
    first.load_state_dict(module.state_dict())
    output, last = module(x, h0, starts)
    swapped, same = first(x.transpose(0, 1), h0, starts.T)
    torch.testing.assert_close((swapped.transpose(0, 1), same), (output, last))
    torch.testing.assert_close(module(x[:, 1], h0[1], starts[:, 1]), (output[:, 1], last[1]))
    half, between = module(x[:4], h0, starts[:4])
    rest, end = module(x[4:], between, starts[4:])
    torch.testing.assert_close((torch.cat([half, rest]), end), (output, last))
    lengths = [4, 9, 6]
    packed, last = module(pack_padded_sequence(x, lengths, enforce_sorted=False), h0, starts)
    padded, _ = pad_packed_sequence(packed)
    for b, length in enumerate(lengths):
        wanted = module(x[:length, b], h0[b], starts[:length, b])
        torch.testing.assert_close((padded[:length, b], last[b]), wanted)


@forms
def test_copies_compiler_autocast_and_explain(nonlinearity):
    module, x = layer(nonlinearity=nonlinearity, dtype=torch.float32), torch.randn(T, B, I)
    wanted, _ = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x)[0], wanted)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="eager")(x)[0], wanted)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = module(x)
    assert output.dtype == (torch.bfloat16 if nonlinearity == "tanh" else torch.float32)
    torch.testing.assert_close(output.float(), wanted, rtol=0.05, atol=0.05)
    (choice,) = rnnkern.ops.explain(module, x)
    assert choice.implementation == ("cpu" if rnnkern._extension.available else "reference")
    module.reset_parameters()
    assert not torch.equal(module(x)[0], wanted)
    assert [module(torch.randn(*shape, I))[0].shape for shape in ((0, 2), (3, 0))] == [(0, 2, H), (3, 0, H)]


def test_wrong_arguments():
    for options, error, said in (
        ({"dt": 0}, ValueError, "dt must be positive, got 0"),
        ({"dt": "fast"}, TypeError, "dt should be of type float, got: str"),
        ({"nonlinearity": "relu"}, ValueError, "nonlinearity must be one of .* got 'relu'"),
        ({"stable_map": "relu"}, ValueError, "stable: `stable_map` must be one of"),
    ):
        with pytest.raises(error, match=said):
            layer(**options)
    with pytest.raises(TypeError, match="ContinuousRNN: `hx` must be a tensor, got tuple"):
        layer()(torch.randn(T, B, I, dtype=F64), (1,))
    with pytest.raises(ValueError, match=r"ContinuousRNN: `hx` must be \(\d+, \d+\), got \(1, \d+, \d+\)"):
        layer()(torch.randn(T, B, I, dtype=F64), torch.zeros(1, B, H, dtype=F64))
    assert "dt=0.2, nonlinearity=identity" in str(layer(dt=0.2, nonlinearity="identity"))
