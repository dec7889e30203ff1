"""Kernels under the thread sanitizer: the races of wrong kernels are found, though the results are right for every
seed, and ours have none. The wrong kernels are those in csrc/interpreter/faults.cpp."""

import shutil

import numpy as np
import pytest

from python_tests.gpu import builder, kernels, race_calls, races
from python_tests.gpu.kernels import fault
from python_tests.gpu.test_interpreter import place

pytestmark = pytest.mark.skipif(shutil.which(builder.compiler()[0]) is None, reason="no C++ compiler")
SCRIPT = """
import sys
from python_tests.gpu import kernels, races
for name in sys.argv[2:]:
    print("kernel", name, file=sys.stderr, flush=True)
    for seed in range(5):
        kernels.fault(name, [int(sys.argv[1])] * 65, 512, seed=seed, flags=races.FLAGS)
"""

WRONG = {
    "neighbour": ("Neighbour", 1),
    "neighbour_in_warp": ("NeighbourInWarp", 1),
    "one_lane_waits": ("OneLaneWaits", 1),
    "stores_over": ("StoresOver", 2),
    "copies_over": ("CopiesOver", 1),
    "waits_after_barrier": ("WaitsAfterBarrier", 1),
    "word_for_data": ("WordForData", 1),
    "predecessor": ("Predecessor", 1),
    "counts": ("Counts", 1),
}
"""Kernels with a race unless `in` is not 0: the type, and the number of a line that takes part in it."""


def found(given: int, names) -> dict[str, list[races.Race]]:
    """The races of each kernel."""
    kernels.build_library("interpret", races.FLAGS)
    _, said = races.run("-c", SCRIPT, str(given), *names)
    parts = (part.partition("\n") for part in said.split("kernel ")[1:])
    return {name: races.races_of(text) for name, _, text in parts}


def test_interpret_finds_the_races_of_wrong_kernels():
    seen = found(0, WRONG)
    for name, line in WRONG.items():
        at = place(*line).rstrip(":")
        assert any(at in access for race in seen[name] for access in race.accesses), (name, list(map(str, seen[name])))


def test_interpret_finds_no_races_in_the_right_ones():
    """Those of the same kernels that have a right form."""
    seen = found(1, [name for name in WRONG if name not in ("predecessor", "counts")])
    assert {name: list(map(str, races)) for name, races in seen.items() if races} == {}


UNSEEN = {
    "neighbour_in_warp": np.roll(np.arange(32), -1),
    "one_lane_waits": np.full(64, 7),
    "stores_over": np.full(32, 1),
    "word_for_data": np.full(64, 7),
}
"""What wrong kernels return for every seed."""


@pytest.mark.parametrize("name", UNSEEN)
def test_interpret_shows_these_races_by_no_result(name):
    for seed in range(30):
        np.testing.assert_array_equal(fault(name, [0] * 65, 512, seed=seed)[: len(UNSEEN[name])], UNSEEN[name])


@pytest.mark.parametrize("family", race_calls.FAMILIES)
def test_interpret_finds_no_races_in_our_kernels(family):
    library, _, each = race_calls.FAMILIES[family]
    library.build(races.OUR_FLAGS)
    ran, said = races.run("-m", "python_tests.gpu.race_calls", family, "1", *each)
    assert {name.rsplit("/")[-1] for name in ran.split()} == set(each)
    assert not races.races_of(said), "\n".join(map(str, races.races_of(said)))
