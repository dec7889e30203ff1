"""The recurrence with complex numbers against the complex formula: options, numbers at zero, and what it refuses."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from python_tests.samples import RECURRENCE_OPTIONS, changed, check_recurrence, draws, recurrence_sample
from rnnkern.ops import explain, recurrence

OPTIONS = [
    "reset",
    "packed-grad_scale-heads",
    "packed-reset-reverse-heads-weight_ih",
    "no bias-weight_ih",
    "keep",
]
C128 = torch.complex128


def complex_sample(option="plain", steps=5, batch=4, hidden=6, dtype=C128):
    """A real sample with imaginary parts."""
    options = RECURRENCE_OPTIONS[option] | {"dtype": dtype.to_real(), "requires_grad": True}
    real = recurrence_sample("modrelu", steps, batch, hidden, **options)
    sample = changed(real, lambda x: 0.7 * torch.complex(x, torch.randn_like(x)))
    return sample._replace(
        kwargs=sample.kwargs | {k: x for k, x in real.kwargs.items() if k in ("params", "grad_scale", "keep")}
    )


@pytest.mark.parametrize("dtype", [torch.complex64, C128], ids=str)
@pytest.mark.parametrize("sizes", [(9, 4, 6), (0, 3, 6), (2, 0, 6)], ids=str)
@pytest.mark.parametrize("option", OPTIONS)
def test_values_and_gradients_are_the_formulas(option, sizes, dtype):
    sample = complex_sample(option, *sizes, dtype)
    assert explain(recurrence, *sample.args, **sample.kwargs).implementation == "cpu"
    check_recurrence(recurrence, draws(complex_sample, option, *sizes, dtype))


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


def test_the_compiler_takes_it():
    sample = complex_sample("reset")
    compiled = torch.compile(lambda: recurrence(*sample.args, **sample.kwargs)[0], fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(), recurrence(*sample.args, **sample.kwargs)[0])


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
