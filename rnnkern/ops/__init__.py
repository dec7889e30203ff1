"""Fused operators: public functions with shapes and errors, over ``torch.ops.rnnkern``."""

from rnnkern.ops.dispatch import Choice, explain, use
from rnnkern.ops.recurrence import recurrence

__all__ = ["Choice", "explain", "recurrence", "use"]
