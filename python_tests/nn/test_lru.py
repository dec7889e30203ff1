"""LRU: its equations, the initial eigenvalues, layouts, state, resets, and general behavior of modules."""

import copy
import math
import pickle

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnkern
from python_tests.samples import draws
from rnnkern.nn import LRU
from rnnkern.testing import assert_close_over_draws

T, B, I, N = 9, 3, 4, 6  # noqa: E741
F64 = torch.float64


def layer(**options):
    return LRU(I, N, **{"dtype": F64, "r_min": 0.5} | options)


def loop(module, x, h=0.0, starts=None):
    """The published equations as a loop over time; x (T, B, I)."""
    nu, theta = module.nu_log.exp(), module.theta_log.exp()
    factors = torch.polar((-nu).exp(), theta)
    gamma = (1 - factors.abs().square()).sqrt()
    B, C = torch.view_as_complex(module.B), torch.view_as_complex(module.C)
    outputs = []
    for t, x_t in enumerate(x):
        h = h if starts is None else torch.where(starts[t, :, None], 0, h)
        h = factors * h + gamma * (x_t.to(B.dtype) @ B.mT)
        D = torch.diag(module.D) if module.D.dim() == 1 else module.D
        outputs.append((h @ C.mT).real + x_t @ D.mT)
    return torch.stack(outputs), h


@pytest.mark.parametrize("outputs", [None, 5])
def test_values_and_gradients_are_those_of_the_loop(outputs):
    module, x = layer(output_size=outputs), torch.randn(T, B, I, dtype=F64, requires_grad=True)
    h0 = torch.randn(B, N, dtype=torch.complex128, requires_grad=True)
    starts = torch.rand(T, B) < 0.2
    leaves = [x, h0, *module.parameters()]
    found, wanted = module(x, h0, starts), loop(module, x, h0, starts)
    torch.testing.assert_close(found, wanted)
    assert found[0].shape == (T, B, outputs or I)
    weight = torch.randn_like(found[0])
    grads = [
        torch.autograd.grad((y * weight).sum() + last.real.sum() - 2 * last.imag.sum(), leaves)
        for y, last in (found, wanted)
    ]
    torch.testing.assert_close(*grads)


def test_in_float32_it_is_as_close_as_the_loop():
    def compared():
        module, x = layer(r_min=0.9, r_max=0.999), torch.randn(200, B, I, dtype=F64)
        truth, _ = loop(module, x)
        module.float()
        return {"output": (module(x.float())[0], loop(module, x.float())[0], truth)}

    assert_close_over_draws(draws(compared))


def test_gradients_of_gradients():
    module, x = LRU(2, 2, 1, r_min=0.5, dtype=F64), torch.randn(3, 1, 2, dtype=F64, requires_grad=True)
    names, values = zip(*module.named_parameters(), strict=True)

    def run(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))[0]

    assert torch.autograd.gradcheck(run, (x, *values))
    assert torch.autograd.gradgradcheck(run, (x, *values))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.9, 0.999), (0.5, 0.5)])
def test_it_begins_on_the_ring(low, high):
    module = LRU(1, 4000, r_min=low, r_max=high, max_phase=math.pi / 10, dtype=F64)
    factors = module.eigenvalues().detach()
    moduli, angles = factors.abs(), factors.angle()
    assert ((moduli >= low - 1e-12) & (moduli <= high + 1e-12)).all()
    assert ((angles > 0) & (angles < math.pi / 10)).all()
    assert abs(angles.mean() - math.pi / 20) < 0.01
    middle = math.sqrt((low**2 + high**2) / 2)  # the radius that divides the area of the ring in half
    assert low == high or abs((moduli < middle).double().mean() - 0.5) < 0.05


def test_a_variance_of_one_stays_one():
    """The purpose of gamma: for white noise of variance 1, the variance of each unit is that of its row of B, for any
    eigenvalue."""
    module = LRU(1, 64, r_min=0.5, r_max=0.9, dtype=F64)
    gamma = (1 - module.eigenvalues().abs().square()).sqrt()
    h = torch.randn(400, 64, dtype=torch.complex128)
    for _ in range(30):
        h = module.eigenvalues() * h + gamma * torch.randn(400, 64, dtype=torch.complex128)
    assert abs(h.abs().square().mean() - 1) < 0.05


def test_no_value_of_a_parameter_leads_out_of_the_unit_disc():
    module = layer(dtype=torch.float32)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(10 * torch.randn(p.shape))
    assert (module.eigenvalues().abs() <= 1).all()
    found = torch.autograd.grad(module(torch.randn(T, B, I))[0].square().mean(), list(module.parameters()))
    assert all(grad.isfinite().all() for grad in found)


def test_layouts_are_the_same_call():
    x, starts = torch.randn(T, B, I, dtype=F64), torch.rand(T, B) < 0.2
    module, first = layer(), layer(batch_first=True)
    first.load_state_dict(module.state_dict())
    h0 = torch.randn(B, N, dtype=torch.complex128)
    output, last = module(x, h0, starts)
    swapped, same = first(x.transpose(0, 1), h0, starts.T)
    assert torch.equal(swapped.transpose(0, 1), output)
    assert torch.equal(same, last)
    alone, end = module(x[:, 1], h0[1], starts[:, 1])
    torch.testing.assert_close((alone, end), (output[:, 1], last[1]))
    half, between = module(x[:4], h0, starts[:4])
    rest, end = module(x[4:], between, starts[4:])
    torch.testing.assert_close((torch.cat([half, rest]), end), (output, last))


def test_packed_sequences_are_each_alone():
    lengths, x = [4, 9, 6], torch.randn(T, B, I, dtype=F64)
    module, h0, starts = layer(), torch.randn(B, N, dtype=torch.complex128), torch.rand(T, B) < 0.3
    output, last = module(pack_padded_sequence(x, lengths, enforce_sorted=False), h0, starts)
    padded, _ = pad_packed_sequence(output)
    for b, length in enumerate(lengths):
        wanted = module(x[:length, b], h0[b], starts[:length, b])
        torch.testing.assert_close((padded[:length, b], last[b]), wanted)


@pytest.mark.parametrize("shape", [(0, B), (T, 0), (1, 1)])
def test_sizes_of_nothing(shape):
    output, last = layer()(torch.randn(*shape, I, dtype=F64))
    assert (output.shape, last.shape) == ((*shape, I), (shape[1], N))


def test_copies_compiler_autocast_and_explain():
    module, x = layer(dtype=torch.float32), torch.randn(T, B, I)
    wanted, _ = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x)[0], wanted)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x)[0], wanted)
    with torch.autocast("cpu", torch.bfloat16):
        output, last = module(x)
    assert (output.dtype, last.dtype) == (torch.bfloat16, torch.complex64)
    torch.testing.assert_close(output.float(), wanted, rtol=0.05, atol=0.1)
    (choice,) = rnnkern.ops.explain(module, x)
    assert choice.implementation == ("cpu" if rnnkern._extension.available else "reference")
    assert str(layer(output_size=3)) == "LRU(4, 6, output_size=3, r_min=0.5)"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"r_min": -0.1}, ValueError, "r_min and r_max must satisfy .* got -0.1 and 1.0"),
        ({"r_min": 0.9, "r_max": 0.8}, ValueError, "got 0.9 and 0.8"),
        ({"r_min": 1.0}, ValueError, "not both 0 or 1, got 1.0 and 1.0"),
        ({"max_phase": 7}, ValueError, "max_phase must be in"),
        ({"output_size": 0}, ValueError, "output_size must be at least 1, got 0"),
        ({"dtype": torch.bfloat16}, TypeError, "LRU supports float32 and float64, got torch.bfloat16"),
    ],
)
def test_wrong_options(options, error, said):
    with pytest.raises(error, match=said):
        layer(**options)


def test_wrong_arguments():
    module, x = layer(), torch.randn(T, B, I, dtype=F64)
    for args, error, said in (
        ((x.float(),), TypeError, "dtype of the parameters, torch.float64, got torch.float32"),
        ((x[..., :2],), ValueError, r"LRU: `input` must be \(T, B, 4\)"),
        ((x, torch.zeros(B, N, dtype=F64)), TypeError, "LRU: `hx` must be of dtype torch.complex128, got .*float64"),
        ((x, torch.zeros(B, 2, dtype=torch.complex128)), ValueError, r"LRU: `hx` must be \(3, 6\), got \(3, 2\)"),
        ((x[:, 0], torch.zeros(B, N, dtype=torch.complex128)), ValueError, r"LRU: `hx` must be \(6,\), got \(3, 6\)"),
        ((x, [1]), TypeError, "LRU: `hx` must be a tensor, got list"),
        ((x, None, torch.zeros(B, T, dtype=torch.bool)), ValueError, r"LRU: `reset` must be \(T, B\) = \(9, 3\)"),
    ):
        with pytest.raises(error, match=said):
            module(*args)


@pytest.mark.parametrize("convert", [lambda m: m.half(), lambda m: m.to(torch.bfloat16)])
def test_a_dtype_that_is_not_supported_is_refused_before_it_is_there(convert):
    lru = LRU(2, 3)
    with pytest.raises(TypeError, match=r"LRU supports float32 and float64, got torch\."):
        convert(torch.nn.Sequential(lru))
    assert {p.dtype for p in lru.parameters()} == {torch.float32}
    assert lru.double().to("meta").nu_log.dtype == torch.float64
