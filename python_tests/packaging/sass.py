"""Parses the output of cuobjdump and reports problems of the kernels.

The time loop of a block kernel is the backward branch over a barrier and a matrix product; that of a cluster kernel is
the backward branch over a store into another block and a product. Its only calls are rare cases of the reciprocal, in
cells with sigmoids. A grid kernel has loops inside its time loop, and branches back into it from code that was moved
out of line: its time loop is the shortest one that contains all barriers and words, and loads the input.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from python_tests.gpu.programs import spelled

# ---- names


class Kernel(NamedTuple):
    family: str  # Block, Cluster, Grid or Step
    backward: bool
    cell: str
    storage: str  # or tfloat32, for float32 products in TF32
    head_size: int | None = None
    noisy: bool = False


def kernel(type: str, cells: Iterable[str]) -> Kernel | None:
    """None for kernels that are not of the recurrence's cells. C++ names of cells have no underscores."""
    name, arguments = spelled(type)
    if not (found := re.fullmatch(r"(?:Normalised)?(Block|Cluster|Grid|Step)(Forward|Backward)Kernel", name)):
        return None
    spelling, storage, *rest = arguments
    (cell,) = (cell for cell in cells if cell.replace("_", "") == spelling.lower())
    head_size = int(rest[0]) if rest and rest[0].isdigit() else None
    return Kernel(found[1], found[2] == "Backward", cell, storage, head_size, rest == ["true"])


# ---- the compiler's report


class Resources(NamedTuple):
    registers: int
    stack: int
    local: int


def read_report(lines: Iterable[str]) -> dict[str, Resources]:
    """Resources by the name of the function."""
    report, name = {}, None
    for line in lines:
        if found := re.match(r"\s*Function (\S+):", line):
            name = found[1]
        elif found := re.match(r"\s*REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", line):
            report[name] = Resources(*map(int, found.groups()))
    return report


def report_faults(name: str, used: Resources) -> list[str]:
    return [f"{name}: {used.stack} bytes of stack, {used.local} local"] if used.stack or used.local else []


# ---- the machine code


@dataclass
class Function:
    name: str
    code: list[tuple[int, str]] = field(default_factory=list)  # addresses and instructions without predicates


def read_functions(lines: Iterable[str]) -> Iterator[Function]:
    function, instruction = None, re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ +)?(.*?) *;")
    for line in lines:
        if found := instruction.match(line):
            function.code.append((int(found[1], 16), found[2]))
        elif "Function" in line and (found := re.match(r"\s*Function : (\S+)", line)):
            if function:
                yield function
            function = Function(found[1])
    if function:
        yield function


def count(code: Iterable[tuple[int, str]]) -> Counter:
    """Counts instructions by the part before the first dot."""
    return Counter(re.match(r"\w+", text)[0] for _, text in code)


def loops_over(code: list[tuple[int, str]], over: str = "BAR") -> list[list[tuple[int, str]]]:
    """Every backward branch over such an instruction and a product."""
    loops = []
    for last, (address, text) in enumerate(code):
        target = re.match(r"BRA\b.*?\b0x([0-9a-f]+)", text)
        if target and (first := int(target[1], 16)) < address:
            body = [line for line in code[: last + 1] if line[0] >= first]
            if (kinds := count(body))[over] and kinds["HMMA"] + kinds["FFMA"]:
                loops.append(body)
    return loops


def time_loops(code: list[tuple[int, str]], over: str = "BAR") -> list[list[tuple[int, str]]]:
    """The outer one of nested loops. Rare code is placed after the end of the function and branches back into the loop;
    it counts as part of the loop."""
    loops = []
    for body in loops_over(code, over):
        first = body[0][0]
        while loops and loops[-1][0][0] >= first:
            loops.pop()
        if loops and loops[-1][-1][0] >= first:
            end = max(index for index, (_, other) in enumerate(body) if other.startswith("EXIT"))
            rare = [line for line in body[end + 1 :] if line[0] > loops[-1][-1][0]]
            body = loops.pop() + rare
        loops.append(body)
    return loops


def divides_integers(code: list[tuple[int, str]], address: int) -> bool:
    """Whether the function at this address converts integers before its return, as an integer division does."""
    for _, text in itertools.takewhile(
        lambda line: not line[1].startswith("RET"), (c for c in code if c[0] >= address)
    ):
        if re.match("I2F|F2I", text):
            return True
    return False


class Bounds(NamedTuple):
    """Expected numbers of instructions per step and thread, from csrc/recurrence/cuda/block_tile.cuh and
    cluster_tile.cuh."""

    barriers: int
    global_loads: int
    products: int  # HMMA, or the minimum number of FFMA


def bounds(key: Kernel, facts: dict) -> Bounds:
    gates, D, scalar = facts["gates"], key.head_size, key.storage == "float"
    products = 1 + (facts["first_gates"] < gates)
    values = 1 if scalar else 2 if not key.backward and gates % 2 == 0 and D < 128 else 4
    if key.backward:  # a state, the output's gradient and its scale, reset; c before and after, or the initial one
        reads = facts["saved"] + 4 + (3 if facts["states"] > 1 else 0)
    else:  # u and reset
        reads = gates + 1
    global_loads = values * reads + 1  # plus the first row of the step
    if scalar:
        return Bounds(products, global_loads, 16 * -(-gates * D // 64) * 4 if key.backward else gates * D)
    return Bounds(products, global_loads, gates * D // 16 if key.backward else D // 16 * gates * values // 4)


def cluster_bounds(key: Kernel, facts: dict) -> Bounds:
    gates, first, D, scalar = facts["gates"], facts["first_gates"], key.head_size, key.storage == "float"
    wide = key.storage in ("float", "tfloat32")
    along, largest = (8, 256) if wide else (16, 384)  # columns of a fragment; H on 8 blocks
    units, products = D // (16 if key.head_size > largest else 8), 1 + (first < gates)
    values = 1 if scalar else -(-units * 8 // 256)
    # Loads of a block kernel, and the first row of the step for reading, for writing and for the previous state.
    reads = facts["saved"] + 4 + (3 if facts["states"] > 1 else 0) + 2 + products if key.backward else gates + 3
    if scalar:
        return Bounds(products if key.backward else 0, values * reads, 0)
    size = along if key.backward else 16
    ranges = [(0, first), (first, gates)][:products]
    rows = sum(-(-last * units // size) - from_ * units // size for from_, last in ranges)  # in fragments
    if key.backward:
        return Bounds(products, values * reads, D // 128 * rows)
    # With several values per thread, the compiler may duplicate the loads of the input, for packed and other sequences.
    twice = values * (gates + 1) if values > 1 else 0
    return Bounds(products, values * reads + twice, rows * D // along // 8)


def input_loads(code: list[tuple[int, str]]) -> int:
    """Number of loads from global memory, without the words that blocks exchange."""
    return sum(bool(re.match(r"LDG?\b(?!.*STRONG)", text)) for _, text in code)


def grid_faults(function: Function, key: Kernel, facts: dict) -> list[str]:
    products, float32 = 1 + (facts["first_gates"] < facts["gates"]), key.storage == "float"
    loops = [loop for loop in loops_over(function.code) if input_loads(loop)]
    words = [sum(bool(re.match("LD.*STRONG", text)) for _, text in loop) for loop in loops]
    barriers = [count(loop)["BAR"] for loop in loops]
    whole = [loop for loop, *has in zip(loops, words, barriers, strict=True) if has == [max(words), max(barriers)]]
    if not whole:
        return [f"{key}: no time loop"]
    loop = min(whole, key=len)
    kinds = count(loop)
    reads = facts["saved"] + 4 + (3 if facts["states"] > 1 else 0) if key.backward else facts["gates"] + 1
    narrow = sum(bool(re.match(r"LD\S*STRONG", text)) and ".128" not in text for _, text in function.code)
    held = {
        "BAR": kinds["BAR"] == products * (2 if float32 else 1),
        "LDG": 0 < input_loads(loop) <= reads + 2,  # plus the rows of two steps
        "HMMA": (kinds["HMMA"] == 0) == float32,
        "FFMA": not float32 or kinds["FFMA"] >= 128 * products // (2 if facts["gates"] in (2, 3) else 1),
    }
    faults = [f"{key}: {kind} {kinds[kind]} times in the loop" for kind, right in held.items() if not right]
    # A word and its tag must be read by one load.
    return [*faults, f"{key}: {narrow} words in parts"] if narrow else faults


def code_faults(function: Function, key: Kernel | None, cells: dict[str, dict]) -> list[str]:
    """Problems of a kernel; for kernels without a cell (None) only spills."""
    kinds, name = count(function.code), key or function.name
    faults = [f"{name}: {kind} {kinds[kind]} times" for kind in ("LDL", "STL") if kinds[kind]]
    if key and key.family == "Grid":
        return faults + grid_faults(function, key, cells[key.cell])
    if not key or key.family == "Step":
        return faults
    cluster = key.family == "Cluster"
    loops = time_loops(function.code, "STAS" if cluster else "BAR")
    if len(loops) != 1:
        return [*faults, f"{name}: {len(loops)} time loops"]
    kinds, wanted = count(loops[0]), (cluster_bounds if cluster else bounds)(key, cells[key.cell])
    held = {
        "BAR": kinds["BAR"] == wanted.barriers,
        "LDG": kinds["LDG"] + kinds["LD"] <= wanted.global_loads,
        "HMMA": kinds["HMMA"] == (0 if key.storage == "float" else wanted.products),
    }
    if key.head_size < 128 and key.storage == "float":  # weights fit into registers
        held["FFMA"] = kinds["FFMA"] >= wanted.products
    faults += [f"{name}: {kind} {kinds[kind]} times in the loop; {wanted}" for kind, right in held.items() if not right]
    for _, text in loops[0]:
        called = re.match(r"CALL\.REL\S* .*?0x([0-9a-f]+)", text)
        if called and int(called[1], 16) == loops[0][-1][0] + 16:
            continue  # the way in which code for sm_80 leaves a loop
        if text.startswith("CALL") and (not called or divides_integers(function.code, int(called[1], 16))):
            faults.append(f"{name}: in the loop, {text}")
    return faults
