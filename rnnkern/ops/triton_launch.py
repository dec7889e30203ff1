"""Common parts of all Triton kernel launches."""

import functools
import importlib
from collections.abc import Callable
from types import ModuleType

import torch

from rnnkern import _extension
from rnnkern._torch_private import constant_when_compiled

OPTIONS = {"enable_fp_fusion": True}
"""Options of every launch. They are set explicitly because Triton's defaults change between versions, which would
change results."""


@constant_when_compiled  # torch.compile cannot trace the search for a module
def refusal(device: torch.device) -> str | None:
    """The reason why the Triton kernels cannot run on a device, or None."""
    if device.type != "cuda":
        return f"the tensors are on {device}"
    return _extension.triton_refusal()


def kernels_of(operator: str) -> Callable[[], ModuleType]:
    """Returns a function that imports the operator's Triton kernels when it is called, because importing triton takes
    a second."""
    return functools.partial(importlib.import_module, f"rnnkern.triton.{operator}")


def block_of(size: int) -> int:
    """The smallest power of two that is not less than ``size``."""
    return 1 << max(size - 1, 0).bit_length()
