"""Kernels under the thread sanitizer: the races of wrong kernels are found, though the results are right for every
seed, and ours have none. The wrong kernels are those in python_tests/gpu/unordered.h."""

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
    "Neighbour": 1,
    "NeighbourInWarp": 1,
    "OneLaneWaits": 1,
    "StoresOver": 2,
    "CopiesOver": 1,
    "WaitsAfterBarrier": 1,
    "WordForData": 1,
    "Predecessor": 1,
    "Counts": 1,
}
"""Kernels with a race unless `in` is not 0, and the number of a line that takes part in it."""


def found(given: int, names) -> dict[str, list[races.Race]]:
    """The races of each kernel."""
    kernels.build_library("interpret", races.FLAGS)
    _, said = races.run("-c", SCRIPT, str(given), *names)
    parts = (part.partition("\n") for part in said.split("kernel ")[1:])
    return {name: races.races_of(text) for name, _, text in parts}


def test_interpret_finds_the_races_of_wrong_kernels():
    seen = found(0, WRONG)
    for name, number in WRONG.items():
        at = place(name, number).rstrip(":")
        assert any(at in access for race in seen[name] for access in race.accesses), (name, list(map(str, seen[name])))


def test_interpret_finds_no_races_in_the_right_ones():
    """Those of the same kernels that have a right form."""
    seen = found(1, [name for name in WRONG if name not in ("Predecessor", "Counts")])
    assert {name: list(map(str, races)) for name, races in seen.items() if races} == {}


UNSEEN = {
    "NeighbourInWarp": np.roll(np.arange(32), -1),
    "OneLaneWaits": np.full(64, 7),
    "StoresOver": np.full(32, 1),
    "WordForData": np.full(64, 7),
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
