"""Gradients with respect to h of every step, over the recurrence's table: the backward kernel against the reference."""

import pytest
import torch

import rnnkern
from python_tests.cells.samples import CELLS
from python_tests.samples import EVERY_CELL, agree, recurrence_sample
from python_tests.samples.recorded import opcheck
from python_tests.samples.tangents import DERIVED_ROWS, derived_draws
from python_tests.tiers import each_level
from rnnkern.ops._recurrence.recurrence_tangent import recurrence_adjoint
from rnnkern.reference._recurrence import recurrence_adjoint as by_the_reference


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


@pytest.mark.parametrize(("steps", "batch", "hidden"), [(0, 3, 5), (1, 1, 1), (5, 0, 4), (150, 17, 33)])
@pytest.mark.parametrize("cell", EVERY_CELL)
def test_awkward_sizes(cell, steps, batch, hidden, threads):
    """The longest has several chunks of steps."""
    threads(2)
    _, args, kwargs = recurrence_sample(cell, steps, batch, hidden)
    found = recurrence_adjoint(of_sines, *args, **kwargs)
    torch.testing.assert_close(found, by_the_reference(of_sines, *args, **kwargs))
    assert not found.requires_grad


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
