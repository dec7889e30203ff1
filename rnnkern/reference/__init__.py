"""The equations in plain PyTorch: the oracle of every kernel, and its stand-in where no kernel serves."""

from rnnkern.reference.recurrence import CELLS, recurrence

__all__ = ["CELLS", "recurrence"]
