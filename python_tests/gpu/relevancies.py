"""The CUDA kernels of relevancy_recurrence as a function for tests, on a GPU or on the interpreter."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from python_tests.gpu import drivers
from rnnkern import ops
from rnnkern.ops import Choice

DTYPES = ("float", "double", "device::bfloat16", "device::float16")
KERNELS = tuple(f"kernels.cpp -DRNNKERN_KERNELS_OF={dtype}" for dtype in DTYPES)
DRIVERS = ("plan.cpp", "forward.cpp", "backward.cpp")
FAMILY = drivers.Family(
    "relevancy",
    tuple(f"csrc/relevancy/cuda/{name}" for name in (*KERNELS, *DRIVERS)),
    ("relevancy_recurrence", "relevancy_recurrence_backward", "relevancy_plan"),
)
FACTS = {"block": (9, 0, 1, 232448, 0, 0), "cluster": (9, 0, 1, 232448, 2, 1), "stepwise": (9, 0, 1, 232448, 0, 0)}
"""Device facts for the interpreter, for each kernel."""
FACE = sys.modules["rnnkern.ops._relevancy.relevancy"]
DERIVATIVES = [sys.modules[f"rnnkern.ops.{name}"] for name in ("_relevancy.autograd", "differentiable")]


class Place(drivers.Place):
    """``rnnkern.ops.relevancy_recurrence`` on CPU tensors by the CUDA drivers, inside :func:`routed`."""

    def __init__(self, name: str, kernel: str, operators=None):
        super().__init__(name, FAMILY, FACTS[kernel], operators)
        self.kernel = kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sizes = kwargs.pop("batch_sizes", None)
        args, kwargs = moved(args, self.device), moved(kwargs, self.device)
        return moved(ops.relevancy_recurrence(*args, batch_sizes=sizes, **kwargs), "cpu")


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
    """Context manager in which the public function calls the operators of ``place``, which use its kernel for every
    call that the kernel supports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RNNKERN_CUDA_KERNELS", place.kernel)
        if place.name == "interpret":
            for module in DERIVATIVES:
                patch.setattr(module, "_operators", place.operators)

            def choose(u, *asked):
                why = FACE.missing_on_cuda(*asked)
                return Choice("reference", why) if why else Choice("cuda", "the cuda kernel serves this call")

            patch.setattr(FACE, "_choose", choose)
        yield place
