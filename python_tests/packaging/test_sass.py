"""Machine code of the CUDA kernels for sm_90: none spills, and loops over time load no weights from global memory."""

import pytest

from python_tests.gpu.programs import CELLS, chunks, compiled
from python_tests.packaging.machine_code import code_faults, code_of, kernel, loads, needs_compiler, read_code, spills


def has_code_read(program):
    """Whether the machine code is read: for kernels without a loop over time the compiler's report suffices, and
    float16 has the templates of bfloat16."""
    key = kernel(program.type, CELLS)
    return key and key.family != "Step" and key.storage != "float16"


@needs_compiler
@pytest.mark.proof
@pytest.mark.parametrize("chunk", chunks(p for p in compiled("sm_90") if not p.header.startswith("relevancy/")))
@pytest.mark.drawn
def test_machine_code(chunk):
    """Kernels compile without spills, and their time loops contain the instructions that a step needs."""
    faults = spills(chunk)
    for program in chunk:
        if has_code_read(program):
            faults += code_faults(code_of(program), kernel(program.type, CELLS), CELLS)
    assert faults == []


MOST_LOADS = 40
"""Of relevancy's kernels that keep weights on chip: input, ids of slots, returning events and, at a reset, all events.
Loading the weights would need 96 or more."""


@needs_compiler
@pytest.mark.proof
@pytest.mark.parametrize("chunk", chunks(p for p in compiled("sm_90") if p.header.startswith("relevancy/")))
@pytest.mark.drawn
def test_machine_code_of_relevancy(chunk):
    assert spills(chunk) == []
    for program in chunk:
        cluster = "relevancy::Cluster" in program.type
        if cluster or "relevancy::PerSequenceForward" in program.type:
            assert loads(code_of(program), "STAS" if cluster else "BAR") <= MOST_LOADS, program.type


# ---- what the rules find in machine code

TANH = {"gates": 1, "states": 1, "params": 0, "saved": 0, "first_gates": 1, "joint": True, "resident": True}
LOOPS = {
    "BlockForwardKernel<rnnkern::Tanh, rnnkern::device::bfloat16, 32>": [
        "LDG R9, [R4]", "LDG R8, [R4]", "LDSM R20, [R92]", "HMMA R24, R56", "HMMA R68, R52", "BAR.SYNC 0x0"
    ],
    "ClusterForwardKernel<rnnkern::Tanh, rnnkern::device::bfloat16, 256>": [
        *["LDG R9, [R4]"] * 4, *["LDSM R2, [R9]"] * 2, *["HMMA R24, R56"] * 4, "STAS R1, R2", "BAR.SYNC 0x0"
    ],
    "GridForwardKernel<rnnkern::Tanh, rnnkern::device::bfloat16>": [
        "LDG R9, [R4]", "LDG R8, [R4]", "LDG.128.STRONG R4, [R2]", *["HMMA R24, R56"] * 4, "BAR.SYNC 0x0"
    ],
}  # fmt: skip
"""Instructions in the time loops of the tanh cell."""


def faults_of(type: str, loop: list[str], before: str = "LDC R1, c[0x0][0x28]") -> list[str]:
    lines = [before, *loop, "@P0 BRA 0x10", "EXIT"]
    code = read_code(f"        /*{16 * k:04x}*/   {line} ;" for k, line in enumerate(lines))
    return code_faults(code, kernel(f"rnnkern::{type}", ["tanh"]), {"tanh": TANH})


@pytest.mark.parametrize("type", LOOPS)
def test_a_loop_that_loads_weights_computes_twice_or_spills_is_found(type):
    loop = LOOPS[type]
    assert faults_of(type, loop) == []
    assert "LDG" in str(faults_of(type, loop + 9 * loop[:1]))
    assert "BAR 2 times" in str(faults_of(type, loop + loop[-1:]))
    assert "HMMA 0 times" in str(faults_of(type, [line.replace("HMMA", "FFMA") for line in loop]))
    assert "STL 1 times" in str(faults_of(type, loop, "STL [R1], R0"))
