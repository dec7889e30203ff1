"""Kernels under the thread sanitizer: the races of the wrong kernels in unordered.h are found, and ours have none."""

import shutil

import pytest

from python_tests.gpu import builder, kernels, race_calls, races
from python_tests.gpu.test_interpreter import places

pytestmark = pytest.mark.skipif(shutil.which(builder.compiler()[0]) is None, reason="no C++ compiler")
SCRIPT = """
import sys
from python_tests.gpu import kernels, races
for name, given in zip(sys.argv[1::2], sys.argv[2::2]):
    print("kernel", name, file=sys.stderr, flush=True)
    for seed in range(5):
        kernels.fault(name, [int(given)] * 65, 512, seed=seed, flags=races.FLAGS)
"""
WRONG = {
    "Neighbour": (0, 1),
    "NeighbourInWarp": (0, 1),
    "ReadsStore": (2, 1),
    "StoresOver": (0, 2),
    "CopiesOver": (0, 1),
    "WaitsAfterBarrier": (0, 1),
    "WordForData": (0, 1),
    "Predecessor": (0, 1),
    "Counts": (0, 1),
}
"""Kernels, the `in` with which they have a race (with 1 they have none), and the number of a line that takes part in
it."""


def found(given: dict[str, int]) -> dict[str, list[races.Race]]:
    """The races of each kernel."""
    kernels.build_library("interpret", races.FLAGS)
    _, said = races.run("-c", SCRIPT, *(str(x) for call in given.items() for x in call))
    parts = (part.partition("\n") for part in said.split("kernel ")[1:])
    return {name: races.races_of(text) for name, _, text in parts}


def test_interpret_finds_the_races_of_wrong_kernels():
    seen = found({name: given for name, (given, _) in WRONG.items()})
    for name, (_, number) in WRONG.items():
        at = places(name)[number - 1].rstrip(":")
        assert any(at in access for race in seen[name] for access in race.accesses), (name, list(map(str, seen[name])))


def test_interpret_finds_no_races_in_the_right_ones():
    """Those of the same kernels that have a right form."""
    seen = found({name: 1 for name in WRONG if name not in ("Predecessor", "Counts")})
    assert {name: list(map(str, races)) for name, races in seen.items() if races} == {}


@pytest.mark.parametrize("family", race_calls.FAMILIES)
@pytest.mark.drawn
def test_interpret_finds_no_races_in_our_kernels(family):
    library, _, each = race_calls.FAMILIES[family]
    library.build(races.OUR_FLAGS)
    ran, said = races.run("-m", "python_tests.gpu.race_calls", family, "1", *each)
    assert {name.rsplit("/")[-1] for name in ran.split()} == set(each)
    assert not races.races_of(said), "\n".join(map(str, races.races_of(said)))
