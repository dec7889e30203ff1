"""What the compiler made of the kernels: nothing spills, and the loops over time hold what a step needs, no more.

The loop of a block kernel is found in the machine code as the backward branch over a barrier and a product. Its only
calls are the rare cases of a reciprocal, in cells with sigmoids. A grid kernel has loops within its loop, and branches
back into it from code laid aside: its own is the shortest that has all barriers and words, and fetches input."""

import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import rnnkern

LIBRARY = Path(rnnkern.__file__).parent / "_C.abi3.so"
ARCHS = ["sm_" + arch.removesuffix("+PTX").replace(".", "") for arch in rnnkern.build_info()["cuda_archs"] or ()]
CELLS = json.loads(torch.ops.rnnkern.recurrence_cells()) if ARCHS else {}
CELLS = {cell: facts for cell, facts in CELLS.items() if facts["cuda"]}
BLOCK = ("float", "bfloat16", "float16")
HEAD_SIZES = (32, 64, 128)


def find_cuobjdump() -> str | None:
    triton = importlib.util.find_spec("triton")
    folders = [os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"]
    if triton and triton.origin:
        folders.append(str(Path(triton.origin).parent / "backends/nvidia/bin"))
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(folders))


CUOBJDUMP = find_cuobjdump()
needs_library = pytest.mark.skipif(
    not ARCHS or CUOBJDUMP is None, reason="no cuobjdump" if ARCHS else "the library has no CUDA part"
)


def dump(*arguments: str) -> Iterator[str]:
    """The lines that cuobjdump prints of the library."""
    with subprocess.Popen(
        [CUOBJDUMP, *arguments, LIBRARY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield from process.stdout
        errors = process.stderr.read()
    assert process.returncode == 0, errors


# ---- names


class Kernel(NamedTuple):
    family: str  # Block, Grid or Step
    backward: bool
    cell: str
    storage: str
    head_size: int | None = None
    noisy: bool = False


NAME = re.compile(
    r"(Block|Grid|Step)(Forward|Backward)KernelINS_\d+(\w+?)E(?:([fd])|NS0_\d+(bfloat16|float16)E)"
    r"(?:Li(\d+)E)?(?:Lb([01])E)?EE"
)


def kernel(mangled: str, cells: Iterable[str]) -> Kernel | None:
    """None for kernels that are no cell's. C++ spells cells without underscores."""
    if not (found := NAME.search(mangled)):
        return None
    family, direction, name, scalar, storage, head_size, noisy = found.groups()
    (cell,) = (cell for cell in cells if cell.replace("_", "") == name.lower())
    storage = storage or {"f": "float", "d": "double"}[scalar]
    return Kernel(family, direction == "Backward", cell, storage, int(head_size) if head_size else None, noisy == "1")


def expected(cells: Iterable[str]) -> set[Kernel]:
    block = itertools.product(["Block"], [False, True], cells, BLOCK, HEAD_SIZES)
    grid = itertools.product(["Grid"], [False, True], cells, BLOCK)
    step = itertools.product(["Step"], [False, True], cells, [*BLOCK, "double"], [None], [False, True])
    return {Kernel(*key) for key in (*block, *grid, *step)}


# ---- the compiler's report


class Resources(NamedTuple):
    registers: int
    stack: int
    local: int


def read_report(lines: Iterable[str]) -> dict[str, dict[str, Resources]]:
    """Of every architecture and mangled name."""
    report, arch, name = {}, None, None
    for line in lines:
        if found := re.match(r"arch = (\w+)", line):
            arch = report.setdefault(found[1], {})
        elif found := re.match(r"\s*Function (\S+):", line):
            name = found[1]
        elif found := re.match(r"\s*REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", line):
            arch[name] = Resources(*map(int, found.groups()))
    return report


def report_faults(kernels: dict[str, Resources], cells: Iterable[str]) -> list[str]:
    there = {kernel(name, cells) for name in kernels} - {None}
    faults = [f"missing: {key}" for key in sorted(expected(cells) - there, key=str)]
    faults += [f"unknown: {key}" for key in sorted(there - expected(cells), key=str)]
    for name, used in kernels.items():
        if used.stack or used.local:
            faults.append(f"{kernel(name, cells) or name}: {used.stack} bytes of stack, {used.local} local")
    return faults


# ---- the machine code


@dataclass
class Function:
    name: str
    code: list[tuple[int, str]] = field(default_factory=list)  # addresses and instructions, predicates left out


def read_functions(lines: Iterable[str]) -> Iterator[Function]:
    function, instruction = None, re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ +)?(.*?) *;")
    for line in lines:
        if found := instruction.match(line):
            function.code.append((int(found[1], 16), found[2]))
        elif found := re.match(r"\s*Function : (\S+)", line):
            if function:
                yield function
            function = Function(found[1])
    if function:
        yield function


def count(code: Iterable[tuple[int, str]]) -> Counter:
    """By what comes before the first dot of the instruction."""
    return Counter(re.match(r"\w+", text)[0] for _, text in code)


def time_loops(code: list[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    loops = []
    for last, (address, text) in enumerate(code):
        target = re.match(r"BRA\b.*?\b0x([0-9a-f]+)", text)
        if target and int(target[1], 16) < address:
            body = [line for line in code[: last + 1] if line[0] >= int(target[1], 16)]
            if (kinds := count(body))["BAR"] and kinds["HMMA"] + kinds["FFMA"]:
                loops.append(body)
    return loops


def divides_integers(code: list[tuple[int, str]], address: int) -> bool:
    """Whether the function at this address, up to its return, converts integers, as a division of them does."""
    for _, text in itertools.takewhile(
        lambda line: not line[1].startswith("RET"), (c for c in code if c[0] >= address)
    ):
        if re.match("I2F|F2I", text):
            return True
    return False


@dataclass
class Bounds:
    """Of one step in one thread. The numbers are those of csrc/recurrence/block_tile.h."""

    barriers: int
    global_loads: int
    products: int  # HMMA, or at least so many FFMA
    matrices: int  # LDSM
    shared_loads: int  # others


def bounds(key: Kernel, facts: dict) -> Bounds:
    gates, D, scalar = facts["gates"], key.head_size, key.storage == "float"
    products = 1 + (facts["first_gates"] < gates)
    values = 1 if scalar else 2 if not key.backward and gates % 2 == 0 and D < 128 else 4
    if key.backward:  # a state, the output's gradient and its scale, reset; c before and after, or the initial one
        reads = facts["saved"] + 4 + (3 if facts["states"] > 1 else 0)
    else:  # u and reset
        reads = gates + 1
    global_loads = values * reads + 1  # and the first row of a step
    if not scalar:
        depth = gates * D // 16 if key.backward else D // 16
        fragments = depth if key.backward else depth * gates * values // 4
        return Bounds(products, global_loads, fragments, depth // 2 * (1 if key.backward else products), 0)
    chunks = -(-gates * D // 64) if key.backward else D // 16
    rows = 4 if key.backward else gates
    shared_loads = 4 * chunks * (1 if key.backward else products)
    return Bounds(products, global_loads, 16 * rows * chunks, 0, shared_loads)


def input_loads(code: list[tuple[int, str]]) -> int:
    """From global memory, but for the words that blocks pass on."""
    return sum(bool(re.match(r"LDG?\b(?!.*STRONG)", text)) for _, text in code)


def grid_faults(function: Function, key: Kernel, facts: dict) -> list[str]:
    products, float32 = 1 + (facts["first_gates"] < facts["gates"]), key.storage == "float"
    loops = [loop for loop in time_loops(function.code) if input_loads(loop)]
    words = [sum(bool(re.match("LD.*STRONG", text)) for _, text in loop) for loop in loops]
    barriers = [count(loop)["BAR"] for loop in loops]
    whole = [loop for loop, *has in zip(loops, words, barriers, strict=True) if has == [max(words), max(barriers)]]
    if not whole:
        return [f"{key}: no time loop"]
    loop = min(whole, key=len)
    kinds = count(loop)
    reads = facts["saved"] + 4 + (3 if facts["states"] > 1 else 0) if key.backward else facts["gates"] + 1
    held = {
        "BAR": kinds["BAR"] == products * (2 if float32 else 1),
        "LDG": 0 < input_loads(loop) <= reads + 2,  # and the rows of two steps
        "HMMA": (kinds["HMMA"] == 0) == float32,
        "FFMA": not float32 or kinds["FFMA"] >= 128 * products // (2 if facts["gates"] == 3 else 1),
    }
    return [f"{key}: {kind} {kinds[kind]} times in the loop" for kind, right in held.items() if not right]


def code_faults(function: Function, cells: dict[str, dict]) -> list[str]:
    kinds, key = count(function.code), kernel(function.name, cells)
    name = key or function.name
    faults = [f"{name}: {kind} {kinds[kind]} times" for kind in ("LDL", "STL") if kinds[kind]]
    if key and key.family == "Grid":
        return faults + grid_faults(function, key, cells[key.cell])
    if not key or key.family != "Block":
        return faults
    loops = time_loops(function.code)
    if len(loops) != 1:
        return [*faults, f"{name}: {len(loops)} time loops"]
    kinds, wanted = count(loops[0]), bounds(key, cells[key.cell])
    held = {
        "BAR": kinds["BAR"] == wanted.barriers,
        "LDG": kinds["LDG"] + kinds["LD"] <= wanted.global_loads,
        "LDSM": kinds["LDSM"] == wanted.matrices,
        "HMMA": kinds["HMMA"] == (0 if key.storage == "float" else wanted.products),
    }
    if key.head_size < 128:  # weights are in registers
        held["LDS"] = kinds["LDS"] <= wanted.shared_loads
        held["FFMA"] = key.storage != "float" or kinds["FFMA"] >= wanted.products
    faults += [f"{name}: {kind} {kinds[kind]} times in the loop; {wanted}" for kind, right in held.items() if not right]
    for _, text in loops[0]:
        called = re.match(r"CALL\.REL\S* .*?0x([0-9a-f]+)", text)
        if called and int(called[1], 16) == loops[0][-1][0] + 16:
            continue  # how sm_80 leaves a loop
        if text.startswith("CALL") and (not called or divides_integers(function.code, int(called[1], 16))):
            faults.append(f"{name}: in the loop, {text}")
    return faults


@needs_library
def test_report():
    report = read_report(dump("-res-usage"))
    assert set(report) >= set(ARCHS)
    assert {arch: report_faults(report[arch], CELLS) for arch in ARCHS} == {arch: [] for arch in ARCHS}


@needs_library
@pytest.mark.parametrize("arch", ARCHS)
def test_machine_code(arch):
    seen, faults = set(), []
    for function in read_functions(dump("-sass", "-arch", arch)):
        seen.add(kernel(function.name, CELLS))
        faults += code_faults(function, CELLS)
    assert faults == []
    assert seen - {None} == expected(CELLS)


# ---- the readers find faults

TANH = {"gates": 1, "states": 1, "params": 0, "saved": 0, "first_gates": 1, "joint": True}
MANGLED = "_ZN7rnnkern6device5entryINS_18BlockForwardKernelINS_4TanhENS0_8bfloat16ELi32EEEEEvNT_7ProblemE"
REPORT = f"""
Fatbin elf code:
================
arch = sm_90

Resource usage:
 Common:
  GLOBAL:0
 Function {MANGLED}:
  REG:86 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:736 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _ZN7rnnkern6device5entryINS_16AccumulateKernelIfEEEEvNT_7ProblemE:
  REG:20 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:568 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
CODE = f"""
        code for sm_90
                Function : {MANGLED}
        .headerflags    @"EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                        /* 0x00000a00ff017b82 */
                                                                                 /* 0x000fe20000000800 */
        /*0010*/              @!P1 LDG.E.U16 R9, desc[UR6][R4.64] ;              /* 0x0000000604091981 */
        /*0020*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;                 /* 0x0000000000007b1d */
        /*0030*/                   LDSM.16.M88.4 R20, [R92] ;                    /* 0x000000005c14783b */
        /*0040*/                   HMMA.16816.F32.BF16 R24, R56, R20.reuse, RZ ; /* 0x000000143818723c */
        /*0050*/                   HMMA.16816.F32.BF16 R68, R52, R22, RZ ;       /* 0x000000163444723c */
        /*0060*/               @P0 LDG.E.U16 R8, desc[UR6][R4.64] ;              /* 0x0000000604080981 */
        /*0070*/              @!P2 BRA 0x90 ;                                    /* 0x000000000008a947 */
        /*0080*/                   CALL.REL.NOINC 0xd0 ;                         /* 0x0000000000107944 */
        /*0090*/                   STS.U16 [R64], R86 ;                          /* 0x0000005640007388 */
        /*00a0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;                 /* 0x0000000000007b1d */
        /*00b0*/              @!P5 BRA 0x30 ;                                    /* 0xfffffffc00dcd947 */
        /*00c0*/                   EXIT ;                                        /* 0x000000000000794d */
        /*00d0*/                   MUFU.RCP R0, R0 ;                             /* 0x0000000000007308 */
        /*00e0*/                   RET.REL.NODEC R20 0x0 ;                       /* 0xfffffffc14c47950 */
        /*00f0*/                   BRA 0xf0;                                     /* 0xfffffffc00fc7947 */
"""


def faults_of(code: str) -> list[str]:
    (function,) = read_functions(code.splitlines())
    return code_faults(function, {"tanh": TANH})


def repeated(code: str, part: str, times: int) -> str:
    (line,) = [line for line in code.splitlines() if part in line]
    return code.replace(line, "\n".join([line] * times))


def test_names():
    cells = ["tanh", "gru", "gru_reset_before"]
    assert kernel(MANGLED, cells) == Kernel("Block", False, "tanh", "bfloat16", 32)
    step = "_ZN7rnnkern6device5entryINS_18StepBackwardKernelINS_14GruResetBeforeEdLb0EEEEEvNT_7ProblemE"
    assert kernel(step, cells) == Kernel("Step", True, "gru_reset_before", "double")
    assert kernel(step.replace("Lb0", "Lb1"), cells) == Kernel("Step", True, "gru_reset_before", "double", noisy=True)
    assert kernel("_ZN7rnnkern6device5entryINS_16AccumulateKernelIfEEEEvNT_7ProblemE", cells) is None
    assert len(expected(cells)) == 3 * 2 * (3 * 3 + 3 + 2 * 4)


def test_report_is_read():
    report = read_report(REPORT.splitlines())
    assert list(report) == ["sm_90"]
    assert report["sm_90"][MANGLED] == Resources(86, 0, 0)
    faults = report_faults(report["sm_90"], ["tanh"])
    assert len(faults) == 2 * (3 * 3 + 3 + 2 * 4) - 1
    assert all(fault.startswith("missing: ") for fault in faults)


@pytest.mark.parametrize(("sound", "broken"), [("STACK:0", "STACK:8"), ("LOCAL:0", "LOCAL:8")])
@pytest.mark.parametrize("registers", ["REG:86 ", "REG:20 "])
def test_report_with_a_stack_frame(sound, broken, registers):
    before, after = REPORT.split(registers)
    report = read_report((before + registers + after.replace(sound, broken, 1)).splitlines())
    faults = [fault for fault in report_faults(report["sm_90"], ["tanh"]) if not fault.startswith("missing")]
    assert len(faults) == 1
    assert "8" in faults[0]


def test_code_is_read():
    assert faults_of(CODE) == []
    (function,) = read_functions(CODE.splitlines())
    (loop,) = time_loops(function.code)
    assert (loop[0][0], loop[-1][0]) == (0x30, 0xB0)
    assert bounds(kernel(MANGLED, ["tanh"]), TANH) == Bounds(1, 9, 2, 1, 0)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (CODE.replace("LDC R1, c[0x0][0x28]", "STL [R1], R0        "), "STL 1 times"),
        (CODE.replace("STS.U16 [R64], R86", "LDL.LU R86, [R1]  "), "LDL 1 times"),
        (repeated(CODE, "@P0 LDG", 10), "LDG 10 times"),
        (CODE.replace("STS.U16 [R64], R86", "LDS.128 R8, [R64] "), "LDS 1 times"),
        (repeated(CODE, "LDSM", 2), "LDSM 2 times"),
        (CODE.replace("STS.U16 [R64], R86", "BAR.SYNC 0x0      "), "BAR 2 times"),
        (CODE.replace("HMMA.16816.F32.BF16", "FFMA"), "HMMA 0 times"),
        (CODE.replace("@!P5 BRA 0x30", "@!P5 BRA 0xc0"), "0 time loops"),
        (CODE.replace("MUFU.RCP R0, R0", "I2F.U64.RP R0, R4.64"), "CALL.REL"),
    ],
)
def test_code_with_a_fault(code, fault):
    (found,) = faults_of(code)
    assert fault in found
