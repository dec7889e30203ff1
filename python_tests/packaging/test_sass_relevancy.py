"""What the compiler made of the relevancy recurrence's kernels: all are there, nothing spills (test_sass.py holds all
kernels to that), and the block kernel's loop over time fetches no weights from global memory."""

import re
from collections import Counter

import pytest

from python_tests.packaging.sass import Function, count, loops_over, read_functions
from python_tests.packaging.test_sass import ARCHS, dump, needs_library

NAME = re.compile(r"9relevancy\d+(Sample|Attend|Cell)(Forward|Backward)KernelI(?:NS_\d+([A-Za-z]+)E)?([fd]|Li\d+)E")
CELLS = {"Tanh": 1, "Relu": 1, "ModRelu": 1, "Lstm": 4}
"""Gates."""
WAYS = ("Forward", "Backward")
BARRIERS = 5
"""Of the block kernel in one step, forward."""

EXPECTED = (
    {("Attend", way, None, scalar) for way in WAYS for scalar in "fd"}
    | {("Cell", way, cell, scalar) for way in WAYS for cell in CELLS for scalar in "fd"}
    | {("Sample", way, cell, "Li64") for way in WAYS for cell in CELLS}
    | {("Sample", "Forward", cell, "Li128") for cell in CELLS}
) - {("Sample", "Forward", "Lstm", "Li128"), ("Sample", "Backward", "Lstm", "Li64")}


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
        weights = (gates + 2) * P * P // 256
        assert loop["BAR"] == BARRIERS
        assert loop["FFMA"] >= weights
        assert loop["LDG"] + loop["LD"] <= gates + 4  # input, a given score, a reset, the first row of a step
