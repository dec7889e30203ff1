"""Machine code of the kernels from NVRTC, as cuobjdump prints it, and its faults.

Both are cached in build/machine_code by a hash of all inputs, so unchanged kernels are not recompiled.

The time loop of a block kernel is the backward branch over a barrier and a matrix product; that of a cluster kernel is
the backward branch over a store into another block and a product. Its only calls are rare cases of the reciprocal, in
cells with sigmoids. A grid kernel has loops inside its time loop, and branches back into it from code that was moved
out of line: its time loop is the shortest one that contains all barriers and words, and loads the input.
"""

import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from python_tests.gpu.programs import spelled
from rnnkern import _compiler
from rnnkern._compiler import Program

BUILD = Path(__file__).parents[2] / "build/machine_code"

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
    if not (found := re.fullmatch(r"(Block|Cluster|Grid|Step)(Forward|Backward)Kernel", name)):
        return None
    spelling, storage, *rest = arguments
    (cell,) = (cell for cell in cells if cell.replace("_", "") == spelling.lower())
    head_size = int(rest[0]) if rest and rest[0].isdigit() else None
    return Kernel(found[1], found[2] == "Backward", cell, storage, head_size, rest == ["true"])


# ---- the machine code

Code = list[tuple[int, str]]
"""Addresses, and instructions without predicates."""


def read_code(lines: Iterable[str]) -> Code:
    instruction = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ +)?(.*?) *;")
    return [(int(found[1], 16), found[2]) for line in lines if (found := instruction.match(line))]


def count(code: Iterable[tuple[int, str]]) -> Counter:
    """Counts instructions by the part before the first dot."""
    return Counter(re.match(r"\w+", text)[0] for _, text in code)


def loops_over(code: Code, over: str = "BAR") -> list[Code]:
    """Every backward branch over such an instruction and a product."""
    loops = []
    for last, (address, text) in enumerate(code):
        target = re.match(r"BRA\b.*?\b0x([0-9a-f]+)", text)
        if target and (first := int(target[1], 16)) < address:
            body = [line for line in code[: last + 1] if line[0] >= first]
            if (kinds := count(body))[over] and kinds["HMMA"] + kinds["FFMA"]:
                loops.append(body)
    return loops


def time_loops(code: Code, over: str = "BAR") -> list[Code]:
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


def loads(code: Code, over: str) -> int:
    """Loads from global memory in the only time loop."""
    (loop,) = time_loops(code, over)
    return count(loop)["LDG"] + count(loop)["LD"]


def divides_integers(code: Code, address: int) -> bool:
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


def input_loads(code: Code) -> int:
    """Number of loads from global memory, without the words that blocks exchange."""
    return sum(bool(re.match(r"LDG?\b(?!.*STRONG)", text)) for _, text in code)


def grid_faults(code: Code, key: Kernel, facts: dict) -> list[str]:
    products, float32 = 1 + (facts["first_gates"] < facts["gates"]), key.storage == "float"
    loops = [loop for loop in loops_over(code) if input_loads(loop)]
    words = [sum(bool(re.match("LD.*STRONG", text)) for _, text in loop) for loop in loops]
    barriers = [count(loop)["BAR"] for loop in loops]
    whole = [loop for loop, *has in zip(loops, words, barriers, strict=True) if has == [max(words), max(barriers)]]
    if not whole:
        return [f"{key}: no time loop"]
    loop = min(whole, key=len)
    kinds = count(loop)
    reads = facts["saved"] + 4 + (3 if facts["states"] > 1 else 0) if key.backward else facts["gates"] + 1
    narrow = sum(bool(re.match(r"LD\S*STRONG", text)) and ".128" not in text for _, text in code)
    held = {
        "BAR": kinds["BAR"] == products * (2 if float32 else 1),
        "LDG": 0 < input_loads(loop) <= reads + 2,  # plus the rows of two steps
        "HMMA": (kinds["HMMA"] == 0) == float32,
        "FFMA": not float32 or kinds["FFMA"] >= 128 * products // (2 if facts["gates"] in (2, 3) else 1),
    }
    faults = [f"{key}: {kind} {kinds[kind]} times in the loop" for kind, right in held.items() if not right]
    # A word and its tag must be read by one load.
    return [*faults, f"{key}: {narrow} words in parts"] if narrow else faults


def code_faults(code: Code, key: Kernel, cells: dict[str, dict]) -> list[str]:
    kinds = count(code)
    faults = [f"{key}: {kind} {kinds[kind]} times" for kind in ("LDL", "STL") if kinds[kind]]
    if key.family == "Grid":
        return faults + grid_faults(code, key, cells[key.cell])
    if key.family == "Step":
        return faults
    cluster = key.family == "Cluster"
    loops = time_loops(code, "STAS" if cluster else "BAR")
    if len(loops) != 1:
        return [*faults, f"{key}: {len(loops)} time loops"]
    kinds, wanted = count(loops[0]), (cluster_bounds if cluster else bounds)(key, cells[key.cell])
    held = {
        "BAR": kinds["BAR"] == wanted.barriers,
        "LDG": kinds["LDG"] + kinds["LD"] <= wanted.global_loads,
        "HMMA": kinds["HMMA"] == (0 if key.storage == "float" else wanted.products),
    }
    if key.head_size < 128 and key.storage == "float":  # weights fit into registers
        held["FFMA"] = kinds["FFMA"] >= wanted.products
    faults += [f"{key}: {kind} {kinds[kind]} times in the loop; {wanted}" for kind, right in held.items() if not right]
    for _, text in loops[0]:
        called = re.match(r"CALL\.REL\S* .*?0x([0-9a-f]+)", text)
        if called and int(called[1], 16) == loops[0][-1][0] + 16:
            continue  # the way in which code for sm_80 leaves a loop
        if text.startswith("CALL") and (not called or divides_integers(code, int(called[1], 16))):
            faults.append(f"{key}: in the loop, {text}")
    return faults


# ---- the compiler


def find_cuobjdump() -> str | None:
    triton = importlib.util.find_spec("triton")
    folders = [os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"]
    if triton and triton.origin:
        folders.append(str(Path(triton.origin).parent / "backends/nvidia/bin"))
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(folders))


CUOBJDUMP = find_cuobjdump()
needs_compiler = pytest.mark.skipif(_compiler.nvrtc() is None, reason=f"{_compiler.LIBRARY} is not installed")


def compiled(program: Program) -> Path:
    """The file with a program's cubin; older versions are deleted."""
    with mock.patch.dict(os.environ, {"RNNKERN_CACHE_DIR": str(BUILD)}):
        path = _compiler.place_of(program)
        if not path.exists():
            for old in BUILD.glob(f"{path.stem.rpartition('-')[0]}-*"):
                old.unlink(missing_ok=True)
        _compiler.cubin_of(program)
    return path


def dump(program: Program, what: str) -> str:
    """What cuobjdump prints with one of its options."""
    path = compiled(program)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(_compiler._read(path))
        file.flush()
        done = subprocess.run([CUOBJDUMP, what, file.name], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def spills(programs: Iterable[Program]) -> list[str]:
    """Compiles all programs and lists those that spill registers to memory. Skips the test if cuobjdump is missing."""
    faults = []
    for program in programs:
        compiled(program)
        if CUOBJDUMP is not None:
            ((stack, local),) = re.findall(r"STACK:(\d+) .*LOCAL:(\d+)", dump(program, "-res-usage"))
            if (stack, local) != ("0", "0"):
                faults.append(f"{program.symbol}: {stack} bytes of stack, {local} local")
    if CUOBJDUMP is None:
        pytest.skip("the kernels compile; there is no cuobjdump to read their machine code with")
    return faults


def code_of(program: Program) -> Code:
    """The machine code of a kernel."""
    kept = compiled(program).with_suffix(".sass")
    text = _compiler.read_file(kept)
    if text is None:
        text = "\n".join(line for line in dump(program, "-sass").splitlines() if ";" in line).encode()
        _compiler.write_file(kept, text)
    return read_code(text.decode().splitlines())
