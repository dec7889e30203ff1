"""Every CUDA program that a launch plan can choose, obtained by calling the plans."""

import functools
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

import pytest
import torch

from rnnkern._compiler import Program
from rnnkern._precompile import ALONE, FACTS

_operators = torch.ops.rnnkern

CELLS = json.loads(_operators.recurrence_cells())
"""Properties of the cells, by name."""
RELEVANCY_CELLS = ("tanh", "relu", "modrelu", "lstm")
DTYPES = ("float32", "bfloat16", "float16", "float64")
SIZES = (32, 64, 128, 256, 384, 512, 640, 768, 1024, 2048, 65536)
"""Values of H: every size for which kernels are compiled, one that only the grid kernel supports, and one that no
resident kernel supports."""
BATCHES = (1, 64, 256, 1024, 4096)
"""Batch sizes. Kernels that keep R on chip are chosen only for the small ones; with more sequences, products of many
rows are faster."""

MEMORIES = (10, 200)
"""Sizes of the memory of relevancy_recurrence: one that fits into a block together with all weights, and one that only
a cluster can hold."""


def _recurrences(facts: tuple[int, ...]) -> Iterator[str]:
    for cell, dtype, hidden, batch in itertools.product(CELLS, DTYPES, SIZES, BATCHES):
        for noisy, tf32 in itertools.product((False, True), {False, dtype == "float32"}):
            yield _operators.recurrence_plan(cell, dtype, (100, batch, hidden, 1), facts, noisy, tf32)


def _relevancies(facts: tuple[int, ...]) -> Iterator[str]:
    for cell, dtype, *sizes in itertools.product(RELEVANCY_CELLS, DTYPES, BATCHES, SIZES, MEMORIES):
        yield _operators.relevancy_plan(cell, dtype, (100, *sizes, 10), facts)


def _rotations() -> Iterator[str]:
    for dtype, is_complex, size in itertools.product(("float32", "float64"), (False, True), SIZES):
        yield _operators.givens_programs(dtype, is_complex, size)


@functools.cache
def programs(arch: str) -> Sequence[Program]:
    """Each program once, in a fixed order."""
    facts = FACTS[arch]
    found = {ALONE} if facts[0] >= 9 else set()
    for plan in itertools.chain(_recurrences(facts), _relevancies(facts)):
        found |= {tuple(program) for program in json.loads(plan)["programs"]}
    for each in _rotations():
        found |= {tuple(program) for program in json.loads(each)}
    return [Program(*program, arch) for program in sorted(found)]


def spelled(type: str) -> tuple[str, list[str]]:
    """Splits a C++ type of the package into the name of its template and the arguments."""
    name, _, arguments = re.sub(r"rnnkern::(device::)?", "", type).removesuffix(">").partition("<")
    return name, arguments.split(", ")


def sample(arch: str) -> list[Program]:
    """A program of every template and dtype, with different cells and sizes."""

    def kind(program: Program) -> tuple[str, ...]:
        name, arguments = spelled(program.type)
        return name, *(argument for argument in arguments if argument in STORED)

    found = []
    for k, (_, alike) in enumerate(itertools.groupby(sorted(programs(arch), key=kind), kind)):
        alike = list(alike)
        found.append(alike[k % len(alike)])
    return sorted(found)


def compiled(arch: str) -> Sequence[Program]:
    """The programs that tests of machine code compile: those in which each argument of a template occurs at least once,
    and any two of those after the first, which is the cell; all of them if RNNKERN_EVERY_PROGRAM is set."""
    if os.environ.get("RNNKERN_EVERY_PROGRAM"):
        return programs(arch)
    found = []
    for _, alike in itertools.groupby(programs(arch), lambda program: (program.header, spelled(program.type)[0])):
        pairs = {program: _pairs(program) for program in alike}
        missing = set().union(*pairs.values())
        while missing:
            best = max(pairs, key=lambda program: len(pairs[program] & missing))
            found.append(best)
            missing -= pairs[best]
    return sorted(found)


def _pairs(program: Program) -> set:
    """The arguments of the template and pairs of those after the first, with their positions, and their number."""
    _, arguments = spelled(program.type)
    placed = list(enumerate(arguments))
    return {len(arguments), *placed, *itertools.combinations(placed[1:], 2)}


STORED = ("float", "double", "bfloat16", "float16", "tfloat32")


def chunks(found: Iterable[Program], most: int = 20) -> list:
    """Test parameters: groups of programs with the same header."""
    parameters = []
    for header, alike in itertools.groupby(found, lambda program: program.header):
        listed, name = list(alike), re.sub(r"/cuda/|/", "-", str(PurePath(header).with_suffix("")))
        for first in range(0, len(listed), most):
            parameters.append(pytest.param(listed[first : first + most], id=f"{listed[0].arch}-{name}-{first}"))
    return parameters
