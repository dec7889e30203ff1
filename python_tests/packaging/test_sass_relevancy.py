"""What the compiler made of the relevancy recurrence's kernels: all are there, nothing spills (test_sass.py holds all
kernels to that), and the block kernel's loop over time fetches no weights from global memory but those that it
streams."""

import re
from collections import Counter

import pytest

from python_tests.packaging.sass import Function, count, loops_over, read_functions
from python_tests.packaging.test_sass import ARCHS, dump, needs_library

NAME = re.compile(
    r"9relevancy\d+(Sample|Attend|Cell|Pack)(Forward|Backward|)KernelI(?:NS_\d+([A-Za-z]+)E)?([fd]|Li\d+)E"
)
CELLS = {"Tanh": 1, "Relu": 1, "ModRelu": 1, "Lstm": 4}
"""Gates."""
WAYS = ("Forward", "Backward")
BARRIERS = 5
"""Of the block kernel in one step, forward."""

EXPECTED = (
    {("Attend", way, None, scalar) for way in WAYS for scalar in "fd"}
    | {("Cell", way, cell, scalar) for way in WAYS for cell in CELLS for scalar in "fd"}
    | {("Sample", way, cell, size) for way in WAYS for cell in CELLS for size in ("Li64", "Li128")}
    | {("Pack", "", None, "Li128")}
)
HELD = {("Lstm", 128): 45, ("Tanh", 128): 40, ("Relu", 128): 40, ("ModRelu", 128): 40}
"""Four weights each that a thread of the block kernel keeps in registers, forward, where these are not all."""
STREAMED = {("Lstm", 128): 5}
"""Four weights each that it fetches at every step."""


def time_loop(function: Function) -> Counter:
    """The outermost loop over a barrier and products."""
    return count(max(loops_over(function.code), key=len))


@needs_library
@pytest.mark.parametrize("arch", ARCHS)
def test_machine_code(arch):
    seen = {}
    for function in read_functions(dump("-sass", "-arch", arch)):
        if found := NAME.search(function.name):
            seen[found.groups()] = function
    assert set(seen) == EXPECTED
    for (family, way, cell, size), function in seen.items():
        assert not count(function.code)["LDL"] + count(function.code)["STL"]
        if (family, way) != ("Sample", "Forward"):
            continue
        loop, P, gates = time_loop(function), int(size[2:]), CELLS[cell]
        weights = 4 * HELD.get((cell, P), (gates + 2) * P * P // 1024)
        assert loop["BAR"] == BARRIERS
        assert loop["FFMA"] >= weights
        reads = gates + 4 + STREAMED.get((cell, P), 0)  # input, a given score, a reset, the first row of a step
        assert loop["LDG"] + loop["LD"] <= reads
