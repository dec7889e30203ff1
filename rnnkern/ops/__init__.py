"""Fused operators: public functions with shapes and errors, over ``torch.ops.rnnkern``."""

from rnnkern.ops.dispatch import Choice, explain, use
from rnnkern.ops.recurrence import recurrence
from rnnkern.ops.recurrence_pair import recurrence_bidirectional, recurrence_stacked

__all__ = ["Choice", "explain", "recurrence", "recurrence_bidirectional", "recurrence_stacked", "use"]
