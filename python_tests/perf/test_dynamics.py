"""The pictures of gates, Lyapunov spectra and non-normal weights: in small versions and in the published CSVs, all
numbers lie where theory says."""

import subprocess
import sys
from itertools import product

import pytest

from perf import record
from perf.dynamics import rows, training
from perf.dynamics.__main__ import PARTS, PICTURES
from perf.dynamics.numbers import agrees, interval
from perf.dynamics.rows import Rows

PUBLISHED = {name: sorted(record.RESULTS.glob(f"*/{name}")) for name in (rows.NAME, training.NAME)}


@pytest.mark.proof
@pytest.mark.parametrize("name", PICTURES)
def test_small_versions_have_their_numbers_where_theory_says(name, tmp_path):
    found, parts = Rows(name), []
    PICTURES[name](tmp_path, True, found, lambda: parts.append(1))
    assert found
    assert rows.outside(found) == []
    assert len(parts) == PARTS[name]
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.png", f"{name}.svg"}


def test_published_numbers_lie_where_theory_says_and_belong_to_published_pictures():
    (path,) = PUBLISHED[rows.NAME]
    found = record.read(path)
    assert {row["picture"] for row in found} == set(PICTURES)
    assert rows.outside(found) == []
    for name, suffix in product(PICTURES, ("png", "svg")):
        assert (record.PICTURES / f"{name}.{suffix}").exists()


def test_published_numbers_are_more_than_intervals_without_limits():
    """Of each picture, most numbers can fail; those of the trainings are as found."""
    (path,) = PUBLISHED[rows.NAME]
    for name in PICTURES:
        found = [row for row in record.read(path) if row["picture"] == name and "training" not in row["case"]]
        limited = [row for row in found if float(row["least"]) > -1e300 and float(row["most"]) < 1e300]
        assert len(limited) > len(found) / 2, name


def test_published_trainings_are_complete():
    (path,) = PUBLISHED[training.NAME]
    found = training.newest(record.read(path))
    cases = {(float(row["a_h"]), float(row["a_z"]), int(row["seed"])) for row in found}
    assert cases == set(product(training.A_H, training.A_Z, range(training.SEEDS)))
    epochs = {int(row["epoch"]) for row in found}
    assert len(found) == len(cases) * len(epochs)
    assert max(epochs) >= training.EPOCHS
    assert all(0 <= float(row["train_accuracy"]) <= 1 for row in found)


def test_a_number_outside_of_its_interval_is_found():
    found = Rows("picture")
    found.add("case", "quantity", 1, 2.0, 1.0, 3.0)
    found.add("case", "quantity", 2, 4.0, 1.0, 3.0)
    found.add("case", "quantity", 3, float("nan"), 1.0, 3.0)
    assert [row["at"] for row in rows.outside(found)] == [2, 3]


def test_numbers_agree_to_their_last_digit():
    assert interval("2.50") == pytest.approx((2.495, 2.505))
    assert interval("5.143e-6") == pytest.approx((5.1425e-6, 5.1435e-6))
    assert agrees(2.504, "2.50")
    assert not agrees(2.506, "2.50")


def test_the_command_says_what_it_takes():
    done = subprocess.run(
        [sys.executable, "-m", "perf.dynamics", "--help"], cwd=record.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("usage: python -m perf.dynamics")
