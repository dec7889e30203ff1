"""Tools that measure what recurrent models and their weights do, in plain PyTorch."""

from rnnkern.analysis._memory import KINDS, memory_function, perturbation_error

__all__ = ["KINDS", "memory_function", "perturbation_error"]
