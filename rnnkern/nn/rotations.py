"""Recurrent weights that are products of rotation layers: applied inside the recurrence, or formed as a matrix."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils import parametrize

from rnnkern.ops import Choice
from rnnkern.ops._orthogonal.givens_recurrence import DTYPES, pays
from rnnkern.parametrizations._factors import Givens
from rnnkern.parametrizations._unitary import ComplexGivens


def layers_inside(module: Module, name: str, fused: bool | None, x: Tensor, batch: int) -> dict[str, Any] | None:
    """The rotation layers of a weight as arguments of :func:`rnnkern.ops.givens_recurrence`, or None if the recurrence
    should use the matrix.

    Args:
        module, name: the module and the name of its weight.
        fused: True uses the layers wherever possible, False never, and None where they are faster.
        x: a tensor with the dtype and device of the input.
        batch: B.
    """
    if fused is False or not parametrize.is_parametrized(module, name) or len(module.parametrizations[name]) != 1:
        return None
    made = module.parametrizations[name][0]
    if not isinstance(made, (Givens, ComplexGivens)) or x.is_meta or torch.is_autocast_enabled(x.device.type):
        return None
    angles, *phases = made.originals
    if angles.dim() != 2 or angles.dtype not in DTYPES or x.dtype != angles.dtype:
        return None
    sequences = None if torch.compiler.is_compiling() else batch  # compiled code serves any batch size
    if fused is None and not pays(made.sizes[-1], angles.shape[0], sequences, bool(phases), x.device):
        return None
    layers = {"angles": angles, "style": made.style}
    return layers | dict(zip(("phases", "diagonal_phases"), phases, strict=False))


def said_inside(choice: Choice) -> Choice:
    """Adds to the reason that the recurrence applies the rotation layers, for :func:`rnnkern.ops.explain`."""
    return choice._replace(reason=f"{choice.reason}, which applies the rotation layers inside the recurrence")
