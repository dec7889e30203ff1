"""Every cell has a sample of every option, which the reference takes; covering arrays cover every pair."""

import itertools

import pytest
import torch

from python_tests.samples import DENSE, NORMALISED, RECURRENCE_OPTIONS, covering_rows, recurrence_samples
from rnnkern import reference
from rnnkern.reference import CELLS
from rnnkern.reference._recurrence import cell_of


@pytest.mark.parametrize("cell", [*CELLS, *NORMALISED])
def test_every_cell_has_a_sample_of_every_option_that_the_reference_takes(cell):
    samples = list(recurrence_samples([cell]))
    left_out = {option for option in RECURRENCE_OPTIONS if "heads" in option and cell in DENSE}
    left_out |= {option for option in RECURRENCE_OPTIONS if "keep" in option and cell in NORMALISED}
    assert [sample.name for sample in samples] == [f"{cell}-{o}" for o in RECURRENCE_OPTIONS if o not in left_out]
    for sample in samples:
        h, final = reference.recurrence(*sample.args, **sample.kwargs)
        assert len(final) == cell_of(cell).states
        assert h.isfinite().all()


FACTORS = {"a": [1, 2, 3], "b": "xy", "c": [None, True, False, 0.5], "d": ["p", "q"], "e": [0]}


def test_a_covering_array_covers_every_pair_with_few_rows():
    rows = covering_rows(FACTORS)
    for (a, xs), (b, ys) in itertools.combinations(FACTORS.items(), 2):
        assert {(row[a], row[b]) for row in rows} == set(itertools.product(xs, ys))
    assert len(rows) < 2 * 3 * 4
    torch.manual_seed(1)
    assert rows == covering_rows(FACTORS)
