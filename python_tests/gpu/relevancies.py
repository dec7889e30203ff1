"""The relevancy recurrence's CUDA kernels as a function that tests can call: on a GPU, or on the interpreter with CPU
tensors."""

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

from python_tests.gpu import builder
from rnnkern import _extension, ops
from rnnkern.ops import Choice

KERNELS = ("attend.cu", "sample.cu", "cluster.cu", "cuda_plan.cpp", "cuda_forward.cpp", "cuda_backward.cpp")
SOURCES = (
    *builder.INTERPRETER,
    "csrc/interpreter/relevancy.cpp",
    "csrc/common/counters.cpp",
    "csrc/common/tensor.cpp",
    *(f"csrc/relevancy/{name}" for name in KERNELS),
)
LIBRARY = "rnnkern_interpret_relevancy"
SHARED = ("relevancy_recurrence", "relevancy_recurrence_backward", "relevancy_plan", "kernel_counts")
FACTS = {"block": (9, 0, 1, 232448, 0, 0), "cluster": (9, 0, 1, 232448, 2, 1), "stepwise": (9, 0, 1, 232448, 0, 0)}
"""What the interpreter pretends to be, for each kernel."""
FACE = sys.modules["rnnkern.ops.relevancy"]
DERIVATIVES = sys.modules["rnnkern.ops.relevancy_autograd"]


@functools.cache
def interpreted():
    """torch.ops.rnnkern_interpret_relevancy, with the schemas of torch.ops.rnnkern."""
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
    torch.ops.load_library(
        builder.build("relevancy", SOURCES, own, [f"-L{folder}/lib", "-ltorch", "-ltorch_cpu"])
    )  # fmt: skip
    interpreted.kept = definitions
    return getattr(torch.ops, LIBRARY)


class Place:
    """``rnnkern.ops.relevancy_recurrence`` of CPU tensors by the CUDA drivers, inside :func:`routed`."""

    def __init__(self, name: str, kernel: str):
        self.name, self.kernel = name, kernel
        self.operators = torch.ops.rnnkern if name == "cuda" else interpreted()
        self.set_facts(*FACTS[kernel])
        self.set_seed(0)

    def set_facts(self, *facts: int) -> None:
        """Hardware has its own."""
        if self.name == "interpret":
            self.operators.set_facts(*facts)

    def set_seed(self, seed: int) -> None:
        if self.name == "interpret":
            self.operators.set_seed(seed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        device = "cuda" if self.name == "cuda" else "cpu"
        sizes = kwargs.pop("batch_sizes", None)
        args, kwargs = moved(args, device), moved(kwargs, device)
        return moved(ops.relevancy_recurrence(*args, batch_sizes=sizes, **kwargs), "cpu")

    def entered(self, call) -> Counter:
        before = Counter(json.loads(self.operators.kernel_counts()))
        call()
        return Counter(json.loads(self.operators.kernel_counts())) - before


def moved(x: Any, device: str) -> Any:
    if isinstance(x, torch.Tensor):
        return x.to(device)
    if isinstance(x, dict):
        return {key: moved(value, device) for key, value in x.items()}
    if isinstance(x, tuple):
        values = [moved(value, device) for value in x]
        return type(x)(*values) if hasattr(x, "_fields") else tuple(values)
    return x


@contextmanager
def routed(place: Place) -> Iterator[Place]:
    """Inside, the public face calls the place's operators, which take the place's kernel where it can serve."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RNNKERN_CUDA_KERNELS", place.kernel)
        if place.name == "interpret":
            patch.setattr(DERIVATIVES, "_operators", place.operators)
            patch.setattr(FACE, "_choose", lambda cell, u: Choice("cuda", "the cuda kernel serves this call"))
        yield place


def clusters() -> tuple[int, ...]:
    """How many of 8 and of 16 blocks run at once on the GPU."""
    return _extension.device_facts(torch.device("cuda", torch.cuda.current_device()))[4:]
