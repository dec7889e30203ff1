"""What the kernels of the recurrence know of each cell."""

import json

import torch

from rnnkern import _extension
from rnnkern._cells import library

KERNEL_CELLS: dict[str, dict[str, int]] = (
    json.loads(torch.ops.rnnkern.recurrence_cells()) if _extension.available else {}
)
"""For each cell with kernels (csrc/cells/list.h), its properties such as ``saved``, ``resident`` and ``params``."""


def saved_by(cell: str) -> int:
    """Number of values per unit and step that a cell's kernel saves in addition to the states."""
    return KERNEL_CELLS[cell]["saved"] if cell in KERNEL_CELLS else library.saved_by(cell)
