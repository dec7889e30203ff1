"""Gradients with respect to h of every step, over the cells and options of the recurrence's table: the backward kernel
against the reference, and its other results with and without them."""

import pytest
import torch

import rnnkern
from python_tests.cells.samples import CELLS
from python_tests.samples import agree, recurrence_sample
from python_tests.samples.recorded import opcheck
from python_tests.samples.tangents import DERIVED_ROWS, derived_draws
from python_tests.tiers import each_level
from rnnkern.ops._recurrence.adjoint import recurrence_adjoint
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS
from rnnkern.reference._recurrence import recurrence_adjoint as by_the_reference

F64 = torch.float64


def of_sines(h):
    """The gradient of a loss that reads all h."""
    return h.sin()


def adjoint_of_sines(op, sample):
    return {"adjoint": op(of_sines, *sample.args, **sample.kwargs)}


@each_level
@pytest.mark.parametrize(("cell", "option", "dtype"), DERIVED_ROWS, ids=str)
@pytest.mark.sampled
def test_it_is_the_references(cell, option, dtype, level, simd):
    simd(level)
    samples = derived_draws(cell, option, dtype, 9, 4, 18)
    agree(recurrence_adjoint, by_the_reference, adjoint_of_sines, samples)


@pytest.mark.parametrize(("steps", "batch", "hidden"), [(0, 3, 5), (1, 1, 1), (5, 0, 4), (40, 17, 33)])
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_awkward_sizes(cell, steps, batch, hidden, threads):
    threads(2)
    _, args, kwargs = recurrence_sample(cell, steps, batch, hidden)
    found = recurrence_adjoint(of_sines, *args, **kwargs)
    torch.testing.assert_close(found, by_the_reference(of_sines, *args, **kwargs))
    assert not found.requires_grad


def raw(sample, grad_h, grad_state, needs_h, save_gates=True):
    """The results of the backward operator."""
    cell, u, R, state = sample.args
    k = sample.kwargs
    common = u, R, list(state), k["bias"], list(k["params"]), k["batch_sizes"], k.get("reset"), k["reverse"]
    projection, noise = (k.get("weight_ih"), k.get("bias_ih")), sample.noise()
    h, *rest = torch.ops.rnnkern.recurrence.default(cell, *common, True, save_gates, *projection, *noise)
    saved = rest[len(state) :]
    args = (cell, grad_h, grad_state, *common, k.get("grad_scale"), h, saved, True, k["bias"] is not None, *projection,
            True, True, True, *noise, needs_h, True, 0)  # fmt: skip
    return torch.ops.rnnkern.recurrence_backward.default(*args)


LONG = {"steps": 150, "batch": 4, "hidden": 20, "packed": True, "reset": True, "zoneout": 0.2, "dropout": 0.3}
"""Several chunks of steps."""


@pytest.mark.parametrize("inputs", [0, 7])
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_it_leaves_the_bits_of_the_other_gradients(cell, dtype, inputs, threads):
    sample = recurrence_sample(cell, **LONG, inputs=inputs, dtype=dtype)
    rows, state = int(sample.kwargs["batch_sizes"].sum()), sample.args[3]
    grads = torch.randn(rows, state[0].shape[1]).to(dtype), [torch.randn(s.shape).to(dtype) for s in state]
    threads(2)
    *others, of_h = raw(sample, *grads, True)
    alone = raw(sample, *grads, False)
    assert len(alone) == len(others)
    assert all(torch.equal(a, b) for a, b in zip(alone, others, strict=True))
    for number, save_gates in ((1, True), (2, False)):
        threads(number)
        assert torch.equal(of_h, raw(sample, *grads, True, save_gates)[-1])


@pytest.mark.parametrize("cell", ["lstm_projected", "gru"])
def test_opcheck(cell):
    sample = recurrence_sample(cell, 5, 4, 18, packed=True)
    opcheck(lambda: adjoint_of_sines(recurrence_adjoint, sample))


@pytest.mark.parametrize("cell", [*CELLS, rnnkern.cells.heavy_ball], ids=lambda cell: cell.name)
def test_of_a_user_written_cell(cell):
    sample = recurrence_sample(cell.name, 5, 3, 9, packed=True, reset=True, reverse=True)
    agree(recurrence_adjoint, by_the_reference, adjoint_of_sines, [sample])


def test_the_reference_can_be_forced():
    sample = recurrence_sample("lstm", 4, 2, 3)
    with rnnkern.use("reference"):
        found = recurrence_adjoint(of_sines, *sample.args, **sample.kwargs)
    assert torch.equal(found, by_the_reference(of_sines, *sample.args, **sample.kwargs))


def test_it_has_no_derivative():
    sample = recurrence_sample("tanh", 4, 2, 3, requires_grad=True)
    h = torch.randn(4, 2, 3, dtype=F64, requires_grad=True)
    *_, found = raw(sample, h, [], True)
    with pytest.raises(NotImplementedError, match="the gradient of h has no derivative"):
        found.sum().backward()
