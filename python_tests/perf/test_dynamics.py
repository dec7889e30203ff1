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

NUMBERS = ("at", "value", "least", "most")
PUBLISHED = {name: sorted(record.RESULTS.glob(f"*/{name}")) for name in (rows.NAME, training.NAME)}


def published(picture, quantity, case=None):
    (path,) = PUBLISHED[rows.NAME]
    found = [row | {name: float(row[name]) for name in NUMBERS} for row in record.read(path)]
    return [
        row for row in found if (row["picture"], row["quantity"]) == (picture, quantity) and case in (None, row["case"])
    ]


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
    assert {(row["picture"], row["case"], row["quantity"]) for row in rows.outside(found)} == MISSED
    for name, suffix in product(PICTURES, ("png", "svg")):
        assert (record.PICTURES / f"{name}.{suffix}").exists()


MISSED = {("gates-spectra", f"gru_reset_before 10 10 seed {seed}", "spectral radius") for seed in (0, 1)}
"""A single real eigenvalue is .08 and .12 beyond the edge, which describes the bulk; the others are within .06."""
WIDTHS = [
    # picture, quantity: so many rows with an interval of at most this width
    ("gates-spectra", "share outside", 24, 0.025),
    ("gates-spectra", "spectral radius", 24, 0.12),
    ("gates-radius", "spectral radius", 11, 0.12),  # six of them are numbers of theory
    ("gates-radius", "spectral radius", 13, 0.24),
    ("gates-radius", "share of slow modes", 4, 0.08),
    ("gates-phases", "bifurcation", 12, 1e-2),
    ("gates-phases", "marginal line", 4, 1.01e-4),
    ("gates-phases", "C_h", 10, 1.01e-6),
    ("gates-phases", "rho_0", 10, 1.01e-5),
    ("gates-phases", "rate c of theorem 4.8", 1, 1.01e-7),
    ("gates-phases", "imaginary part at 1", 5, 1.01e-7),
    ("gates-phases", "spectral radius - 1", 4, 1.01e-8),
    ("gates-lstm", "share outside", 4, 0.02),
    ("gates-lstm", "spectral radius", 5, 0.1),
    ("gates-lstm", "slow modes per unit", 7, 0.06),
    ("gates-training", "share of slow modes", 14, 0.08),
    ("lyapunov", "sum", 6, 1e-6),
    ("lyapunov", "largest exponent", 8, 0.05),
    ("nonnormal", "J_tot", 12, 1.01e-4),
]


@pytest.mark.parametrize(("picture", "quantity", "count", "width"), WIDTHS)
def test_published_numbers_are_held_to_narrow_intervals(picture, quantity, count, width):
    found = published(picture, quantity)
    assert sum(row["most"] - row["least"] <= width * (1 + 1e-9) for row in found) == count


def test_published_controls_and_orders():
    """Statements that are not intervals around a number."""
    for left_out, count in (("a_r", 24), ("a_z", 12)):
        controls = published("gates-spectra", f"share outside without {left_out}")
        assert len(controls) == count
        with_it = {row["case"]: row["value"] for row in published("gates-spectra", "share outside")}
        assert all(row["value"] > with_it[row["case"]] for row in controls)
    slow = [row["value"] for row in published("lyapunov", "share of |lambda| < 0.01")]
    assert slow == sorted(set(slow))  # a_z = 1, 3, 10
    assert len(slow) == 3
    starts = published("nonnormal", "mean squared norm")
    assert len(starts) == 60
    assert all(row["most"] - row["least"] < 0.5 * row["most"] for row in starts)
    for gamma in ("1", "0.958"):
        by_lag = published("nonnormal-gradients", "norm by lag", f"gamma {gamma}, all units active")
        assert len(by_lag) == 10
        assert all(row["most"] < 1e300 for row in by_lag)
    norms = [row["value"] for row in by_lag]
    assert norms[-1] < 0.5 * max(norms)  # gamma = 0.958 falls in the end
    growth = {row["case"]: row for row in published("nonnormal-gradients", "growth of ln norm per step")}
    assert growth["gamma 1, all units active"]["value"] < 0.5 * growth["gamma 1, all units active"]["most"]


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
