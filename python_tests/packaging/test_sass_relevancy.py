"""What the compiler made of the relevancy recurrence's kernels: all are there, nothing spills, and the block and the
cluster kernels' loops over time fetch no weights from global memory but those that a block streams."""

import re
from collections import Counter

import pytest

from python_tests.packaging.machine_code import cubin, dump, needs_compiler
from python_tests.packaging.sass import Function, count, read_functions, time_loops

NAME = re.compile(
    r"9relevancy\d+(Sample|Cluster|Attend|Cell|Pack)(Forward|Backward|)KernelI(?:NS_\d+([A-Za-z]+)E)?"
    r"([fd]|Li\d+)E(f|NS0_8bfloat16|NS0_7float16)?"
)
CELLS = {"Tanh": 1, "Relu": 1, "ModRelu": 1, "Lstm": 4}
"""Gates."""
WAYS = ("Forward", "Backward")
BARRIERS = 5
"""Of a block in one step, where weights stay on the chip; of a cluster's backward one is for alpha that is not kept."""
CLUSTERS = {1: {256: 8, 384: 16, 512: 16}, 4: {128: 8, 256: 16, 384: 16}}
"""Blocks, by the number of gates and size."""

STORED = {"f": "f", "NS0_8bfloat16": "16 bits", "NS0_7float16": "16 bits"}
"""How a block holds weights."""
SAMPLES = {("f", 1): (64, 128), ("f", 4): (64, 128), ("16 bits", 1): (256,), ("16 bits", 4): (128,)}
"""Sizes, by that and the number of gates."""

EXPECTED = (
    {("Attend", way, None, scalar, None) for way in WAYS for scalar in "fd"}
    | {("Cell", way, cell, scalar, None) for way in WAYS for cell in CELLS for scalar in "fd"}
    | {
        ("Sample", way, cell, f"Li{P}", stored)
        for way in WAYS for cell, gates in CELLS.items() for stored, kind in STORED.items()
        for P in SAMPLES[kind, gates]
    }
    | {("Pack", "", None, "Li128", stored) for stored in STORED}
    | {("Pack", "", None, "Li256", stored) for stored, kind in STORED.items() if kind == "16 bits"}
    | {("Cluster", way, cell, f"Li{D}", None) for way in WAYS for cell, gates in CELLS.items() for D in CLUSTERS[gates]}
)  # fmt: skip
HELD = {
    **{("f", gates, 64): (gates + 2) * 4 for gates in (1, 4)}, ("f", 1, 128): 40, ("f", 4, 128): 45,
    ("16 bits", 1, 256): 40, ("16 bits", 4, 128): 30,
}  # fmt: skip
"""16 bytes of weights each that a thread of the block kernel keeps in registers, forward."""
STREAMED = {("f", 4, 128): 5, ("16 bits", 1, 256): 2}
"""Likewise what a turn of the loop over streamed weights fetches: one of each matrix, V's gates and W_a."""
RECALLED = 28
"""What a cluster fetches backward beside what a cell's gates keep: who was in a slot, an event that comes back or, at a
reset, all of them, and what came to h, s and alpha. Its weights would be 96 and more."""


def time_loop(function: Function, family: str) -> Counter:
    """Over barriers, or of a cluster over stores into other blocks."""
    (loop,) = time_loops(function.code, "STAS" if family == "Cluster" else "BAR")
    return count(loop)


SOURCES = {"Sample": "sample", "Pack": "sample", "Cluster": "cluster", "Attend": "attend", "Cell": "attend"}


def source_of(family: str, stored: str | None) -> str:
    """The file in csrc/relevancy that has the kernels of a family."""
    return f"{SOURCES[family]}{ {'f': '_f32', 'NS0_8bfloat16': '_bf16', 'NS0_7float16': '_f16', None: ''}[stored] }.cu"


@needs_compiler
@pytest.mark.parametrize("source", ["sample_f32.cu", "sample_bf16.cu", "cluster.cu", "attend.cu"])
def test_machine_code(source):
    seen = {}
    for function in read_functions(dump("-sass", cubin(f"relevancy/{source}", "sm_90"))):
        assert not count(function.code)["LDL"] + count(function.code)["STL"], function.name
        if found := NAME.search(function.name):
            seen[found.groups()] = function
    assert set(seen) == {key for key in EXPECTED if source_of(key[0], key[4]) == source}
    for (family, way, cell, size, stored), function in seen.items():
        if family not in ("Sample", "Cluster"):
            continue
        if (family, way) == ("Sample", "Backward"):
            continue
        loop, P, gates = time_loop(function, family), int(size[2:]), CELLS[cell]
        kind = STORED.get(stored), gates, P
        weights = (gates + 2) * P // 8 if family == "Cluster" else (4 if stored == "f" else 8) * HELD[kind]
        assert loop["BAR"] == BARRIERS
        # Forward h and parts of scores; backward parts of dalpha, U_a^T dkey and ds.
        assert loop["STAS"] == (0 if family == "Sample" else 2 if way == "Forward" else 3)
        assert loop["FFMA"] >= weights
        # Input, a given score, a reset, the first row of a step and the next, which a cluster reads with each gate.
        if way == "Backward":
            assert loop["LDG"] + loop["LD"] <= RECALLED + 3 * gates
            continue
        reads = gates + (4 if family == "Sample" else 3 + gates) + STREAMED.get(kind, 0)
        assert loop["LDG"] + loop["LD"] <= reads
