"""A recurrent weight that is a product of layers of rotations: the layers inside the recurrence, or the matrix."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils import parametrize

from rnnkern.ops import Choice
from rnnkern.ops._orthogonal.givens_recurrence import DTYPES, pays
from rnnkern.parametrizations import ComplexGivens, Givens


def layers_inside(module: Module, name: str, fused: bool | None, x: Tensor, batch: int) -> dict[str, Any] | None:
    """What :func:`rnnkern.ops.givens_recurrence` takes of the layers that a weight is made of, or None where the
    recurrence is to take the matrix.

    Args:
        module, name: whose weight, and which.
        fused: True where it can be, False nowhere, None where it is the faster.
        x: the input, of which dtype and device are read.
        batch: B.
    """
    if fused is False or not parametrize.is_parametrized(module, name) or len(module.parametrizations[name]) != 1:
        return None
    made = module.parametrizations[name][0]
    if not isinstance(made, (Givens, ComplexGivens)) or torch.is_autocast_enabled(x.device.type):
        return None
    angles, *phases = made.originals
    if angles.dim() != 2 or angles.dtype not in DTYPES or x.dtype != angles.dtype:
        return None
    sequences = None if torch.compiler.is_compiling() else batch  # compiled code is for any
    if fused is None and not pays(made.sizes[-1], angles.shape[0], sequences, bool(phases), x.device):
        return None
    layers = {"angles": angles, "style": made.style}
    return layers | dict(zip(("phases", "diagonal_phases"), phases, strict=False))


def said_inside(choice: Choice) -> Choice:
    """Of the operator, for :func:`rnnkern.ops.explain`."""
    return choice._replace(reason=f"{choice.reason}, with the layers inside the recurrence")
