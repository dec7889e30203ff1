"""Machine code of the kernels of relevancy_recurrence: none spills, and time loops of block and cluster kernels load no
weights from global memory except those that a block streams."""

import re
from typing import NamedTuple

import pytest

from python_tests.gpu.programs import chunks, compiled, programs, spelled
from python_tests.packaging.machine_code import function, needs_compiler, spills
from python_tests.packaging.sass import count, time_loops

CELLS = {"Tanh": 1, "Relu": 1, "ModRelu": 1, "Lstm": 4}
"""Number of gates per cell."""
BARRIERS = 5
"""Number of barriers per step of a block whose weights stay on chip. The backward pass of a cluster has another one,
for alpha, which it recomputes."""
STORED = {"float": "float", "bfloat16": "16 bits", "float16": "16 bits"}
"""Storage format of the weights in a block."""
HELD = {
    **{("float", gates, 64): (gates + 2) * 4 for gates in (1, 4)}, ("float", 1, 128): 40, ("float", 4, 128): 45,
    ("16 bits", 1, 256): 40, ("16 bits", 4, 128): 30,
}  # fmt: skip
"""Number of 16-byte pieces of weights that a thread of the block kernel keeps in registers in the forward pass."""
STREAMED = {("float", 4, 128): 5, ("16 bits", 1, 256): 2}
"""Number of such pieces per iteration of the loop over streamed weights: one of each matrix, the gates of R and W_a."""
RECALLED = 28
"""Number of loads in the backward pass of a cluster besides the saved gates: ids of slots, a returning event or, at a
reset, all events, and the gradients of h, s and alpha. Loading the weights would need 96 or more."""


class Kernel(NamedTuple):
    family: str  # PerSequence or Cluster
    backward: bool
    cell: str
    size: int
    stored: str | None = None  # for block kernels


def kernel(type: str) -> Kernel | None:
    """None for kernels that do not keep weights on chip."""
    name, arguments = spelled(type)
    if not (found := re.fullmatch("relevancy::(PerSequence|Cluster)(Forward|Backward)Kernel", name)):
        return None
    cell, size, *rest = arguments
    stored = rest[0] if found[1] == "PerSequence" else None
    return Kernel(found[1], found[2] == "Backward", cell, int(size), stored)


PROGRAMS = [program for program in programs("sm_90") if program.header.startswith("relevancy/")]


@needs_compiler
@pytest.mark.proof
@pytest.mark.parametrize("chunk", chunks(p for p in compiled("sm_90") if p in PROGRAMS))
def test_machine_code(chunk):
    assert spills(chunk) == []
    for program in chunk:
        key = kernel(program.type)
        if key and (key.family == "Cluster" or not key.backward) and key.stored != "float16":
            check_loop(key, function(program))


def check_loop(key, function):
    """Checks the time loop, which contains barriers, or in a cluster stores into other blocks."""
    (body,) = time_loops(function.code, "STAS" if key.family == "Cluster" else "BAR")
    loop, P, gates, cluster = count(body), key.size, CELLS[key.cell], key.family == "Cluster"
    kind = STORED.get(key.stored), gates, P
    weights = (gates + 2) * P // 8 if cluster else (4 if key.stored == "float" else 8) * HELD[kind]
    assert loop["BAR"] == BARRIERS, key
    # Exchanged values: forward h and partial scores; backward partial sums of dalpha, U_a^T dkey and ds.
    assert loop["STAS"] == (0 if not cluster else 3 if key.backward else 2), key
    assert loop["FFMA"] >= weights, key
    # Loads: input, a given score, a reset, and the first rows of this and the next step, which a cluster reads for each
    # gate.
    if key.backward:
        assert loop["LDG"] + loop["LD"] <= RECALLED + 3 * gates, key
    else:
        reads = gates + (3 + gates if cluster else 4) + STREAMED.get(kind, 0)
        assert loop["LDG"] + loop["LD"] <= reads, key
