"""The CUDA kernels of givens_recurrence as a function for tests: on a GPU, or on the interpreter with CPU tensors."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from python_tests.gpu import drivers
from python_tests.gpu.relevancies import moved
from rnnkern import ops
from rnnkern.ops import Choice

FAMILY = drivers.Family(
    "givens",
    ("csrc/orthogonal/cuda/givens.cpp",),
    ("givens_recurrence", "givens_recurrence_backward", "givens_programs"),
)
LARGE = (9, 0, 1, 232448, 0, 0)
"""Device facts for the interpreter."""
FACE = sys.modules["rnnkern.ops._orthogonal.givens_recurrence"]
DERIVATIVES = sys.modules["rnnkern.ops.differentiable"]


def small(u: torch.Tensor) -> tuple[int, ...]:
    """Facts of a device whose shared memory holds the rows of a warp, but not its sums."""
    parts = 1 + u.is_complex()
    item = u.itemsize // parts
    each = max(2, 1 << (-(-u.shape[-1] // 32) - 1).bit_length())  # numbers of a lane
    depth = 4 if each * parts * item <= 128 else 2
    rows = (3 * depth + 1) * (each * parts + 1) + each + 1
    return (*LARGE[:3], 32 * rows * item, 0, 0)


class Place(drivers.Place):
    """``rnnkern.ops.givens_recurrence`` on CPU tensors by the CUDA drivers, inside :func:`routed`."""

    def __init__(self, name: str, operators=None):
        super().__init__(name, FAMILY, LARGE, operators)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sizes = kwargs.pop("batch_sizes", None)
        args, kwargs = moved(args, self.device), moved(kwargs, self.device)
        return moved(ops.givens_recurrence(*args, batch_sizes=sizes, **kwargs), "cpu")


def refusal(u: torch.Tensor) -> str | None:
    """The reason why these kernels cannot run for CUDA tensors like u; uses fake tensors, so no GPU is needed."""
    with FakeTensorMode():
        return FACE._cuda_refusal(torch.empty(u.shape, dtype=u.dtype, device="cuda"))


@contextmanager
def routed(place: Place) -> Iterator[Place]:
    """Context manager in which the public function calls the operators of ``place``."""
    with pytest.MonkeyPatch.context() as patch:
        if place.name == "interpret":
            for module in (FACE, DERIVATIVES):
                patch.setattr(module, "_operators", place.operators)
            patch.setattr(FACE, "_choose", lambda u: Choice("cuda", "the cuda kernel serves this call"))
        yield place
