"""What every launch of a Triton kernel has in common."""

import torch

from rnnkern import _extension
from rnnkern._torch_private import constant_when_compiled

OPTIONS = {"enable_fp_fusion": True}
"""Of every launch. What Triton does where it is left open changes from version to version, and with it the bits."""


@constant_when_compiled  # a search for a module cannot be traced
def refusal(device: torch.device) -> str | None:
    """Why Triton's kernels cannot serve a device, or None."""
    if device.type != "cuda":
        return f"the tensors are on {device}"
    return _extension.triton_refusal()


def block_of(size: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(size - 1, 0).bit_length()
