"""ContinuousRNN: its differential equation, layouts, state, resets, and general behavior of modules."""

import copy
import pickle

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnkern
from python_tests.samples import draws
from rnnkern.nn import ContinuousRNN
from rnnkern.testing import assert_close_over_draws

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


def adams_loop(module, x, h, starts=None):
    """Adams' method with K steps for each x, on one sequence (T, I); after a reset k is 0."""
    dt, k, outputs = module.dt / module.steps, None, []
    for t, x_t in enumerate(x):
        if starts is not None and starts[t]:
            h, k = torch.zeros_like(h), torch.zeros_like(h)
        for _ in range(module.steps):
            u = torch.nn.functional.linear(x_t, module.weight_ih_l0, module.bias_ih_l0)
            slope = torch.tanh(u + module.weight_hh_l0 @ h)
            h, k = h + dt * (1.5 * slope - 0.5 * (slope if k is None else k)), slope
        outputs.append(h)
    return torch.stack(outputs), (h, k)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("method", "steps"), [("adams", 1), ("adams", 3), ("euler", 3)])
@pytest.mark.sampled
def test_other_methods_and_several_steps(method, steps, packed):
    module, x, h0 = layer(method=method, steps=steps, dt=0.7), torch.randn(T, B, I, dtype=F64), drawn(B, H)
    starts, lengths = torch.rand(T, B) < 0.2, [9, 5, 7]
    starts[0] = False  # otherwise the first k of the loop, which begins with a step of Euler, would not matter
    if method == "euler":
        fine = layer(dt=0.7 / steps)
        fine.load_state_dict(module.state_dict())
    given = pack_padded_sequence(x, lengths, enforce_sorted=False) if packed else x
    output, state = module(given, h0, starts)
    output = pad_packed_sequence(output)[0] if packed else output
    for b, length in enumerate(lengths):
        length = length if packed else T
        inputs, begins = x[:length, b], starts[:length, b]
        if method == "adams":
            wanted, last = adams_loop(module, inputs, h0[b], begins)
            found = tuple(s[b] for s in state)
        else:
            begins = torch.stack([begins, *[torch.zeros_like(begins)] * (steps - 1)], 1).flatten()
            wanted, last = fine(inputs.repeat_interleave(steps, 0), h0[b], begins)
            wanted, found = wanted[steps - 1 :: steps], state[b]
        torch.testing.assert_close((output[:length, b], found), (wanted, last))
    if not packed:
        first, between = module(x[:4], h0, starts[:4])
        second, end = module(x[4:], between, starts[4:])
        torch.testing.assert_close((torch.cat([first, second]), end), (output, state), rtol=0, atol=0)
        leaves = [h0, *module.parameters()]
        wanted = sum(
            (adams_loop(module, x[:, b], h0[b], starts[:, b])[0] if method == "adams" else output[:, b]).square().sum()
            for b in range(B)
        )
        torch.testing.assert_close(
            torch.autograd.grad(output.square().sum(), leaves, retain_graph=True), torch.autograd.grad(wanted, leaves)
        )


def drawn(*shape):
    return torch.randn(*shape, dtype=F64, requires_grad=True)


@forms
def test_in_float32_it_is_as_close_as_the_loop(nonlinearity):
    def compared():
        module, x = layer(nonlinearity=nonlinearity), torch.randn(100, B, I, dtype=F64)
        truth, _ = loop(module, x, x.new_zeros(B, H))
        module.float()
        x = x.float()
        return {"output": (module(x)[0], loop(module, x, x.new_zeros(B, H))[0], truth)}

    assert_close_over_draws(draws(compared))


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
        ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
        ({"method": "rk4"}, ValueError, r"method must be one of \('euler', 'adams'\), got 'rk4'"),
        (
            {"method": "adams", "nonlinearity": "identity"},
            ValueError,
            "`method` and `steps` must be .* got 'adams' and 1",
        ),
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
        (ones[1:], ValueError, r"`gaps` must be \(9, 3\), got \(8, 3\)"),
        (ones.float(), TypeError, r"`gaps` must be a tensor with dtype torch\.float64, got torch\.float32"),
        (1.0, TypeError, "got float"),
    ):
        with pytest.raises(error, match=said):
            module(x, gaps=wrong)
    with pytest.raises(ValueError, match="`gaps` need method='euler', got method='adams'"):
        layer(method="adams")(x, gaps=ones)
