"""Derivatives of the recurrence, over its cells and options: first, second and third ones, and what they need."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from python_tests.gpu.recurrences import smooth
from python_tests.samples import (
    EVERY_CELL,
    check_recurrence,
    draws,
    outputs_and_gradients,
    recurrence_sample,
    recurrence_samples,
)
from python_tests.samples.operators import Call, draw, function_of, named
from rnnkern import reference
from rnnkern.ops import recurrence
from rnnkern.reference._recurrence import cell_of

SAMPLES = list(recurrence_samples(EVERY_CELL, steps=3, batch=3, hidden=4))


FEW = [
    f"{cell}-{option}" for cell in ("goru", "complex_modrelu") for option in ("plain", "packed-reset-reverse", "heads")
]
"""Cells whose options all run the same code as those of another cell: GRU variants, and cells with one gate."""
DIFFERENTIATED = [
    s
    for s in SAMPLES
    if "grad_scale" not in s.name and (s.name in FEW or not s.name.startswith(("goru", "complex_modrelu")))
]


@pytest.mark.parametrize("sample", DIFFERENTIATED, ids=lambda s: s.name)
@pytest.mark.sampled
def test_first_and_second_derivatives(sample):
    """Second derivatives are tested in random directions; the next test uses full matrices."""
    call = Call("recurrence", *named(smooth(sample).to(torch.float64, requires_grad=True)))
    leaves, function = list(call.tensors.values()), function_of(call)
    assert gradcheck(function, leaves)
    assert gradcheck(function, leaves, check_forward_ad=True, check_backward_ad=False, fast_mode=True)
    call.options["save_u"] = True
    assert gradgradcheck(function, leaves, fast_mode=True)


WITH_PARAMS = [cell for cell in EVERY_CELL if cell_of(cell).params]


@pytest.mark.parametrize("inputs", [0, 3])
@pytest.mark.parametrize("cell", WITH_PARAMS)
def test_members_with_constant_params_have_their_own_gradients(cell, inputs):
    """torch.vmap folds the members into one call where no weight needs a gradient."""
    sample = recurrence_sample(cell, 4, 2, 6, inputs=inputs, packed=True, reset=True)
    _, u, R, state = sample.args
    members = torch.stack([u, u / 2, -u])

    def gradient(u):
        return torch.func.grad(lambda u: recurrence(cell, u, R, state, **sample.kwargs)[0].sin().sum())(u)

    torch.testing.assert_close(torch.vmap(gradient)(members), torch.stack([gradient(u) for u in members]))


@pytest.mark.proof
@pytest.mark.parametrize("cell", EVERY_CELL)
def test_second_derivatives_by_every_element(cell):
    options = {"inputs": 2, "packed": True, "reset": True, "reverse": True, "requires_grad": True}
    call = draw("recurrence", 3, 3, 4, cell=cell, **options)
    call.options["save_u"] = True
    assert gradgradcheck(function_of(call), list(call.tensors.values()))


@pytest.mark.parametrize("cell", EVERY_CELL)
def test_second_derivatives_with_grad_scale(cell):
    """Finite differences do not include grad_scale, so the derivatives of the reference by autograd are the truth."""
    sample = recurrence_sample(cell, 3, 2, 3, grad_scale=2, requires_grad=True)

    def second(op):
        h, final = op(*sample.args, **sample.kwargs, save_u=True)
        first = torch.autograd.grad(h.square().sum() + final[-1].sum(), sample.leaves(), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), sample.leaves())

    torch.testing.assert_close(second(recurrence), second(reference.recurrence))


@pytest.mark.parametrize("cell", EVERY_CELL)
def test_without_u_second_derivatives_say_what_keeps_it(cell):
    sample = recurrence_sample(cell, 3, 2, 3, requires_grad=True)
    leaves = sample.leaves()

    def gradients(**options):
        h, _ = recurrence(*sample.args, **sample.kwargs)
        return torch.autograd.grad(h.square().sum(), leaves, materialize_grads=True, **options)

    first = gradients(create_graph=True)
    assert all(map(torch.equal, first, gradients()))
    for g in first:
        if g.requires_grad:
            with pytest.raises(RuntimeError, match="pass `save_u=True`"):
                torch.autograd.grad(g.sum(), leaves, retain_graph=True, allow_unused=True)
    assert first[0].requires_grad


def test_a_batch_of_gradients_needs_no_u():
    sample = recurrence_sample("lstm", 3, 2, 3, requires_grad=True)
    h, _ = recurrence(*sample.args, **sample.kwargs)
    upstream = torch.randn(4, *h.shape, dtype=h.dtype)
    one = lambda g: torch.autograd.grad(h, sample.leaves(), g, retain_graph=True, materialize_grads=True)  # noqa: E731
    for member, g in enumerate(upstream):
        torch.testing.assert_close([x[member] for x in torch.func.vmap(one)(upstream)], list(one(g)))


def test_third_derivative():
    sample = recurrence_sample("tanh", 2, 1, 2, requires_grad=True)
    u = sample.args[1]

    def second(u):
        h, _ = recurrence("tanh", u, *sample.args[2:], **sample.kwargs, save_u=True)
        (g,) = torch.autograd.grad(h.square().sum(), u, create_graph=True)
        (gg,) = torch.autograd.grad(g.square().sum(), u, create_graph=True)
        return gg

    assert gradcheck(second, (u,))


def again(*args, **kwargs):
    return recurrence(*args, **kwargs, save_gates=False)


LONG = {"steps": 150, "batch": 4, "hidden": 20, "packed": True, "reset": True, "requires_grad": True}
"""Several chunks of steps."""


@pytest.mark.parametrize("inputs", [0, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cell", EVERY_CELL)
def test_gates_computed_again_give_the_same_bits(cell, dtype, inputs):
    sample = recurrence_sample(cell, **LONG, inputs=inputs, dtype=dtype)
    kept, computed = (outputs_and_gradients(op, sample) for op in (recurrence, again))
    assert all(torch.equal(kept[name], computed[name]) for name in kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cell", EVERY_CELL)
@pytest.mark.sampled
def test_gates_computed_again_from_16_bits_are_close(cell, dtype):
    """The recomputation reads h with 16 bits."""
    for inputs in (0, 7):
        check_recurrence(again, draws(recurrence_sample, cell, **LONG | {"steps": 40}, inputs=inputs, dtype=dtype))


def test_gradients_of_some_outputs_only():
    sample = recurrence_sample("lstm", 5, 3, 4, requires_grad=True)
    h, (h_n, c_n) = recurrence(*sample.args, **sample.kwargs)
    u = sample.args[1]
    from_h, from_c, from_all = (
        torch.autograd.grad(y, u, retain_graph=True)[0] for y in (h.sum(), c_n.sum(), h.sum() + c_n.sum())
    )
    torch.testing.assert_close(from_h + from_c, from_all)
    assert h_n.grad_fn is h.grad_fn


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.name in ("lstm-plain", "gru-packed-reset-reverse",
                                    "modrelu-packed-grad_scale-heads")], ids=lambda s: s.name)  # fmt: skip
def test_compile(sample, backend):
    sample = sample.to(torch.float64, requires_grad=True)
    torch.compiler.reset()
    wanted = outputs_and_gradients(recurrence, sample)
    actual = outputs_and_gradients(torch.compile(recurrence, fullgraph=True, backend=backend), sample)
    for name, value in wanted.items():
        torch.testing.assert_close(actual[name], value, msg=name)


def test_export_with_any_length_and_batch():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.R = torch.nn.Parameter(torch.randn(12, 3))

        def forward(self, u, h0, c0):
            return recurrence("lstm", u, self.R, (h0, c0))[0]

    model, T, B = Model(), torch.export.Dim("T", min=0), torch.export.Dim("B", min=0)
    args = torch.randn(5, 4, 12), torch.randn(4, 3), torch.randn(4, 3)
    program = torch.export.export(model, args, dynamic_shapes=({0: T, 1: B}, {0: B}, {0: B})).module()
    for steps, batch in ((5, 4), (9, 2), (1, 1), (0, 3), (2, 0)):
        args = torch.randn(steps, batch, 12), torch.randn(batch, 3), torch.randn(batch, 3)
        torch.testing.assert_close(program(*args), model(*args))
