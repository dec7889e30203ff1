"""The recurrence with complex numbers: compared with the complex formula, at zero, and unsupported options."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from python_tests.samples import RECURRENCE_OPTIONS, Sample, agree, draws, recurrence_sample
from rnnkern import _extension, reference, use
from rnnkern.ops import explain, recurrence, recurrence_bidirectional

OPTIONS = ["plain", "packed-grad_scale-heads", "packed-reset-reverse-heads-weight_ih", "no bias-weight_ih"]
C128 = torch.complex128


def complex_sample(option="plain", steps=5, batch=4, hidden=6, dtype=C128, **options):
    """A complex sample, made of two real ones."""
    options = RECURRENCE_OPTIONS[option] | options
    one, other = (recurrence_sample("modrelu", steps, batch, hidden, **options, dtype=torch.float64) for _ in range(2))

    def both(x, y, real=False):
        if isinstance(x, tuple):
            return tuple(both(*pair, real) for pair in zip(x, y, strict=True))
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return (x.to(dtype.to_real()) if real else torch.complex(x, y).to(dtype) * 0.7).requires_grad_()

    kwargs = {k: both(x, other.kwargs[k], k in ("params", "grad_scale")) for k, x in one.kwargs.items()}
    if kwargs.get("grad_scale") is not None:
        kwargs["grad_scale"] = kwargs["grad_scale"].detach()
    return Sample(option, both(one.args, other.args), kwargs)


def cast(sample, dtype):
    def to(x):
        if isinstance(x, tuple):
            return tuple(map(to, x))
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        return x.detach().to(dtype if x.is_complex() else dtype.to_real()).requires_grad_(x.requires_grad)

    return Sample(sample.name, to(sample.args), {k: to(x) for k, x in sample.kwargs.items()})


def results(op, sample):
    """h, the final state and all gradients, of a loss that depends on real and imaginary parts."""
    h, (final,) = op(*sample.args, **sample.kwargs)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator, dtype=C128).to(y.dtype) for y in (h, final)]
    loss = sum((w * y).real.sum() for w, y in zip(weights, (h, final), strict=True))
    return [h, final, *torch.autograd.grad(loss, sample.leaves())]


@pytest.mark.parametrize("option", OPTIONS)
def test_as_the_complex_formula(option):
    sample = complex_sample(option)
    for actual, wanted in zip(results(recurrence, sample), results(reference.recurrence, sample), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-12)


def test_in_complex64_as_close_to_the_truth_as_the_formula():
    named = lambda op, sample: dict(enumerate(results(op, sample)))  # noqa: E731
    agree(recurrence, reference.recurrence, named, draws(complex_sample, "reset", 30, 3, 20, torch.complex64))


def test_first_and_second_derivatives():
    sample = complex_sample("reset", 3, 2, 3)
    _, u, R, (h0,) = sample.args
    bias, (b,) = sample.kwargs["bias"], sample.kwargs["params"]

    def function(u, R, h0, bias, b):
        h, (final,) = recurrence("modrelu", u, R, (h0,), **sample.kwargs | {"bias": bias, "params": (b,)}, save_u=True)
        return h, final

    with torch.no_grad():
        u[0, 0, 0] = -bias[0] - (R @ h0[0])[0] * ~sample.kwargs["reset"][0, 0]  # z = 0
        b[0] = -0.5
    assert gradcheck(function, (u, R, h0, bias, b))
    assert gradgradcheck(function, (u, R, h0, bias, b))


@pytest.mark.parametrize("dtype", [torch.complex64, C128], ids=str)
def test_at_zero_and_at_the_ends_of_the_range(dtype):
    tiny, huge = torch.finfo(dtype).tiny, torch.finfo(dtype).max / 4
    z = torch.tensor([0, 0, 0.3j, complex(tiny, tiny), complex(-huge, huge)], dtype=dtype)
    b = torch.tensor([0.5, 0.0, -0.5, 0.25, 0.0], dtype=dtype.to_real())
    u = z[None, None].clone().requires_grad_()
    b.requires_grad_()
    R, h0 = torch.zeros(5, 5, dtype=dtype), torch.zeros(1, 5, dtype=dtype)
    h, _ = recurrence("modrelu", u, R, (h0,), params=(b,))
    side = 0.25 / 2**0.5
    torch.testing.assert_close(h[0, 0], torch.tensor([0, 0, 0, complex(side, side), complex(-huge, huge)], dtype=dtype))
    du, db = torch.autograd.grad(h.real.sum(), (u, b))
    assert not du.isnan().any()
    assert du[0, 0, :3].tolist() == [0, 0, 0]
    torch.testing.assert_close(db, torch.tensor([0, 0, 0, 2**-0.5, -(2**-0.5)], dtype=b.dtype))


def test_two_directions_are_two_calls():
    calls = []
    for _ in range(2):
        _, x, R, state = complex_sample("weight_ih").args
        kwargs = complex_sample("weight_ih").kwargs
        calls.append({"R": R, "state": state, "weight_ih": kwargs["weight_ih"], "params": kwargs["params"]})
    both = recurrence_bidirectional("modrelu", x, *calls)
    assert torch.equal(both[0][0], recurrence("modrelu", x, **calls[0])[0])
    assert torch.equal(both[1][0], recurrence("modrelu", x, **calls[1], reverse=True)[0])


@pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")
def test_which_implementation():
    sample = complex_sample()
    assert explain(recurrence, *sample.args, **sample.kwargs).implementation == "cpu"
    with use("reference"):
        assert explain(recurrence, *sample.args, **sample.kwargs).implementation == "reference"
        by_formula = recurrence(*sample.args, **sample.kwargs)[0]
    assert torch.equal(by_formula, reference.recurrence(*sample.args, **sample.kwargs)[0])


def test_the_compiler_takes_it():
    sample = complex_sample("reset")
    compiled = torch.compile(lambda: recurrence(*sample.args, **sample.kwargs)[0], fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(), recurrence(*sample.args, **sample.kwargs)[0])


@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (2, 0)])
def test_no_steps_and_no_sequences(steps, batch):
    sample = complex_sample("plain", steps, batch)
    h, (final,), *_ = recurrence(*sample.args, **sample.kwargs)
    assert (h.shape, final.shape) == ((steps, batch, 6), (batch, 6))
    assert h.dtype == final.dtype == C128


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda a: a | {"cell": "tanh", "params": ()}, TypeError, "`u` must have one of the dtypes .*complex128"),
        (lambda a: a | {"R": a["R"].real}, TypeError, "`R` must be of dtype torch.complex128 like `u`"),
        (lambda a: a | {"params": (a["bias"],)}, TypeError, r"`params\[0\]` must be of dtype torch.float64 like `u.re"),
        (lambda a: a | {"grad_scale": a["bias"]}, TypeError, "`grad_scale` must be of dtype torch.float64 like `u.rea"),
        (lambda a: a | {"zoneout": 0.1}, ValueError, "`zoneout` must be 0 for a complex `u`, got 0.1"),
        (lambda a: a | {"dropout": 0.1}, ValueError, "`dropout` must be 0 for a complex `u`, got 0.1"),
    ],
)
def test_wrong_arguments(change, kind, said):
    sample = complex_sample()
    arguments = dict(zip(("cell", "u", "R", "state"), sample.args, strict=True)) | sample.kwargs
    for function in (recurrence, lambda **arguments: explain(recurrence, **arguments)):
        with pytest.raises(kind, match=said):
            function(**change(arguments))
