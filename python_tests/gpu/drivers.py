"""Drivers of CUDA kernels as operators for tests: on a GPU, or on the interpreter with CPU tensors."""

import functools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from python_tests.gpu import builder

OWN = (
    "set_facts(int major, int minor, int multiprocessors, int shared_bytes, int clusters_of_8=0, "
    "int clusters_of_16=0) -> ()",
    "set_seed(int seed) -> ()",
    "bank_conflicts() -> int",
)


class Family(NamedTuple):
    """Kernels and drivers of one library. Its operators have the schemas of those in torch.ops.rnnkern."""

    name: str
    sources: tuple[str, ...]
    operators: tuple[str, ...]

    @property
    def library(self) -> str:
        """The library of torch.ops that has its operators for the interpreter."""
        return f"rnnkern_interpret_{self.name}"

    def build(self, flags: tuple[str, ...] = ()) -> Path:
        """Builds the library for the interpreter."""
        own, libraries = builder.with_torch()
        own.append(f"-DRNNKERN_LIBRARY={self.library}")
        name = self.name + "".join(flag.partition("=")[2].replace(",", "_") for flag in flags)
        common = [f"csrc/common/{name}.cpp" for name in ("counters", "row_layout", "tensor")] + ["csrc/cuda/plan.cpp"]
        # Libraries of users' cells call the interpreter.
        interpreter = (f"{source} -fvisibility=default" for source in builder.INTERPRETER)
        sources = (*interpreter, "csrc/interpreter/stand_in.cpp", *common, *self.sources)
        return builder.build(name, sources, [*own, *flags], [*libraries, *flags])


def definitions(library: str, names: Iterable[str], own: Iterable[str]) -> torch.library.Library:
    """Defines operators with the schemas of those in torch.ops.rnnkern, and others."""
    made = torch.library.Library(library, "DEF")
    for name in names:
        made.define(str(getattr(torch.ops.rnnkern, name).default._schema).removeprefix("rnnkern::"))
    for schema in own:
        made.define(schema)
    return made


@functools.cache
def interpreted(family: Family, flags: tuple[str, ...] = ()):
    """The operators on the interpreter."""
    kept = definitions(family.library, (*family.operators, "kernel_counts"), OWN)
    torch.ops.load_library(family.build(flags))
    operators = getattr(torch.ops, family.library)
    operators.kept = kept
    return operators


class Place:
    """The backend of a family's drivers: "cuda" or "interpret"."""

    def __init__(self, name: str, family: Family, facts: tuple[int, ...], operators=None):
        self.name, self.device = name, "cuda" if name == "cuda" else "cpu"
        self.operators = operators or (torch.ops.rnnkern if name == "cuda" else interpreted(family))
        self.set_facts(*facts)
        self.set_seed(0)

    def set_facts(self, *facts: int) -> None:
        """Sets the device facts of the interpreter; hardware keeps its own."""
        if self.name == "interpret":
            self.operators.set_facts(*facts)

    def set_seed(self, seed: int) -> None:
        if self.name == "interpret":
            self.operators.set_seed(seed)

    def counts(self) -> Counter:
        return Counter(json.loads(self.operators.kernel_counts()))

    def entered(self, call) -> Counter:
        before = self.counts()
        call()
        return self.counts() - before
