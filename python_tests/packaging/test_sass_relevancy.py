"""What the compiler made of the relevancy recurrence's kernels: all are there, nothing spills, and the block and the
cluster kernels' loops over time fetch no weights from global memory but those that a block streams."""

import re
from typing import NamedTuple

import pytest

from python_tests.gpu.programs import chunks, programs, spelled
from python_tests.packaging.machine_code import function, needs_compiler, spills
from python_tests.packaging.sass import count, time_loops

CELLS = {"Tanh": 1, "Relu": 1, "ModRelu": 1, "Lstm": 4}
"""Gates."""
BARRIERS = 5
"""Of a block in one step, where weights stay on the chip; of a cluster's backward one is for alpha that is not kept."""
CLUSTERS = {1: (256, 384, 512), 4: (128, 256, 384)}
"""Sizes, by the number of gates."""
STORED = {"float": "float", "bfloat16": "16 bits", "float16": "16 bits"}
"""How a block holds weights."""
SAMPLES = {("float", 1): (64, 128), ("float", 4): (64, 128), ("16 bits", 1): (256,), ("16 bits", 4): (128,)}
"""Sizes, by that and the number of gates."""
HELD = {
    **{("float", gates, 64): (gates + 2) * 4 for gates in (1, 4)}, ("float", 1, 128): 40, ("float", 4, 128): 45,
    ("16 bits", 1, 256): 40, ("16 bits", 4, 128): 30,
}  # fmt: skip
"""16 bytes of weights each that a thread of the block kernel keeps in registers, forward."""
STREAMED = {("float", 4, 128): 5, ("16 bits", 1, 256): 2}
"""Likewise what a turn of the loop over streamed weights fetches: one of each matrix, V's gates and W_a."""
RECALLED = 28
"""What a cluster fetches backward beside what a cell's gates keep: who was in a slot, an event that comes back or, at a
reset, all of them, and what came to h, s and alpha. Its weights would be 96 and more."""


class Kernel(NamedTuple):
    family: str  # PerSequence or Cluster
    backward: bool
    cell: str
    size: int
    stored: str | None = None  # of a block


def kernel(type: str) -> Kernel | None:
    """None for kernels that keep no weights."""
    name, arguments = spelled(type)
    if not (found := re.fullmatch("relevancy::(PerSequence|Cluster)(Forward|Backward)Kernel", name)):
        return None
    cell, size, *rest = arguments
    stored = rest[0] if found[1] == "PerSequence" else None
    return Kernel(found[1], found[2] == "Backward", cell, int(size), stored)


def expected() -> set[Kernel]:
    return {
        *(
            Kernel("PerSequence", backward, cell, size, stored)
            for backward in (False, True) for cell, gates in CELLS.items() for stored, kind in STORED.items()
            for size in SAMPLES[kind, gates]
        ),
        *(
            Kernel("Cluster", backward, cell, size)
            for backward in (False, True) for cell, gates in CELLS.items() for size in CLUSTERS[gates]
        ),
    }  # fmt: skip


PROGRAMS = [program for program in programs("sm_90") if program.header.startswith("relevancy/")]


def test_every_kernel_is_planned():
    """The others keep no weights, and are listed in test_programs.py."""
    assert {kernel(program.type) for program in PROGRAMS} - {None} == expected()


@needs_compiler
@pytest.mark.proof
@pytest.mark.parametrize("chunk", chunks(PROGRAMS))
def test_machine_code(chunk):
    assert spills(chunk) == []
    for program in chunk:
        key = kernel(program.type)
        if key and (key.family == "Cluster" or not key.backward) and key.stored != "float16":
            check_loop(key, function(program))


def check_loop(key, function):
    """Over barriers, or of a cluster over stores into other blocks."""
    (body,) = time_loops(function.code, "STAS" if key.family == "Cluster" else "BAR")
    loop, P, gates, cluster = count(body), key.size, CELLS[key.cell], key.family == "Cluster"
    kind = STORED.get(key.stored), gates, P
    weights = (gates + 2) * P // 8 if cluster else (4 if key.stored == "float" else 8) * HELD[kind]
    assert loop["BAR"] == BARRIERS, key
    # Forward h and parts of scores; backward parts of dalpha, U_a^T dkey and ds.
    assert loop["STAS"] == (0 if not cluster else 3 if key.backward else 2), key
    assert loop["FFMA"] >= weights, key
    # Input, a given score, a reset, the first row of a step and the next, which a cluster reads with each gate.
    if key.backward:
        assert loop["LDG"] + loop["LD"] <= RECALLED + 3 * gates, key
    else:
        reads = gates + (3 + gates if cluster else 4) + STREAMED.get(kind, 0)
        assert loop["LDG"] + loop["LD"] <= reads, key
