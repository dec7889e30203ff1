"""The CUDA kernels of the recurrence through layers of rotations as a function that tests can call: on a GPU, or on the
interpreter with CPU tensors."""

import functools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from python_tests.gpu import builder
from python_tests.gpu.relevancies import moved
from rnnkern import ops
from rnnkern.ops import Choice

SOURCES = (
    *builder.INTERPRETER,
    "csrc/interpreter/givens.cpp",
    "csrc/common/counters.cpp",
    "csrc/common/tensor.cpp",
    *(f"csrc/orthogonal/givens_recurrence_{dtype}.cu" for dtype in ("f32", "f64")),
    "csrc/orthogonal/cuda_givens_recurrence.cpp",
)
LIBRARY = "rnnkern_interpret_givens"
SHARED = ("givens_recurrence", "givens_recurrence_backward", "kernel_counts")
LARGE, SMALL = (9, 0, 1, 232448, 0, 0), (9, 0, 1, 1024, 0, 0)
"""What the interpreter pretends to be: with room on the chip for a warp's sums, and without."""
FACE = sys.modules["rnnkern.ops.givens_recurrence"]
DERIVATIVES = sys.modules["rnnkern.ops.givens_recurrence_autograd"]


@functools.cache
def interpreted():
    """torch.ops.rnnkern_interpret_givens, with the schemas of torch.ops.rnnkern."""
    definitions = torch.library.Library(LIBRARY, "DEF")
    for name in SHARED:
        definitions.define(str(getattr(torch.ops.rnnkern, name).default._schema).removeprefix("rnnkern::"))
    definitions.define("set_seed(int seed) -> ()")
    definitions.define(
        "set_facts(int major, int minor, int multiprocessors, int shared_bytes, int clusters_of_8, int clusters_of_16)"
        " -> ()"
    )
    folder = Path(torch.__file__).parent
    own = ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-fvisibility=hidden", "-isystem", f"{folder}/include"]
    torch.ops.load_library(builder.build("givens", SOURCES, own, [f"-L{folder}/lib", "-ltorch", "-ltorch_cpu"]))
    interpreted.kept = definitions
    return getattr(torch.ops, LIBRARY)


class Place:
    """``rnnkern.ops.givens_recurrence`` of CPU tensors by the CUDA drivers, inside :func:`routed`."""

    def __init__(self, name: str):
        self.name, self.device = name, "cuda" if name == "cuda" else "cpu"
        self.operators = torch.ops.rnnkern if name == "cuda" else interpreted()
        self.set_facts(*LARGE)
        self.set_seed(0)

    def set_facts(self, *facts: int) -> None:
        """Hardware has its own."""
        if self.name == "interpret":
            self.operators.set_facts(*facts)

    def set_seed(self, seed: int) -> None:
        if self.name == "interpret":
            self.operators.set_seed(seed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sizes = kwargs.pop("batch_sizes", None)
        args, kwargs = moved(args, self.device), moved(kwargs, self.device)
        return moved(ops.givens_recurrence(*args, batch_sizes=sizes, **kwargs), "cpu")

    def entered(self, call) -> Counter:
        before = Counter(json.loads(self.operators.kernel_counts()))
        call()
        return Counter(json.loads(self.operators.kernel_counts())) - before


def refusal(u: torch.Tensor) -> str | None:
    """Why CUDA tensors like u go by no kernel of these; where there is no GPU, fake ones."""
    with FakeTensorMode():
        return FACE._cuda_refusal(torch.empty(u.shape, dtype=u.dtype, device="cuda"))


@contextmanager
def routed(place: Place) -> Iterator[Place]:
    """Inside, the public face calls the place's operators."""
    with pytest.MonkeyPatch.context() as patch:
        if place.name == "interpret":
            patch.setattr(DERIVATIVES, "_operators", place.operators)
            patch.setattr(FACE, "_choose", lambda u: Choice("cuda", "the cuda kernel serves this call"))
        yield place
