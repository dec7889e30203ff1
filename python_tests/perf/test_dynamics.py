"""The pictures of gates, Lyapunov spectra and non-normal weights: in small versions and in the published CSVs, all
numbers lie where theory says."""

from itertools import product

import pytest

from perf import record
from perf.dynamics import rows
from perf.dynamics.__main__ import PARTS, PICTURES
from perf.dynamics.rows import Rows

MISSED = {("gates-spectra", f"gru_reset_before 10 10 seed {seed}", "spectral radius") for seed in (0, 1)}
"""A single real eigenvalue is .08 and .12 beyond the edge, which describes the bulk; the others are within .06."""


@pytest.mark.proof
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.drawn
def test_small_versions_have_their_numbers_where_theory_says(name, tmp_path):
    found, parts = Rows(name), []
    PICTURES[name](tmp_path, True, found, lambda: parts.append(1))
    assert found
    assert rows.outside(found) == []
    assert len(parts) == PARTS[name]
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.png", f"{name}.svg"}


def test_published_numbers_lie_where_theory_says_and_belong_to_published_pictures():
    (path,) = record.RESULTS.glob(f"*/{rows.NAME}")
    found = record.read(path)
    assert {row["picture"] for row in found} == set(PICTURES)
    assert {(row["picture"], row["case"], row["quantity"]) for row in rows.outside(found)} == MISSED
    for name, suffix in product(PICTURES, ("png", "svg")):
        assert (record.PICTURES / f"{name}.{suffix}").exists()
