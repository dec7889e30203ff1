"""Tools that measure what recurrent models and their weights do, in plain PyTorch."""

from rnnkern.analysis._fisher import fisher_memory_curve, spatial_fisher
from rnnkern.analysis._memory import KINDS, memory_function, perturbation_error
from rnnkern.analysis._nonnormal import Departure, commutator, henrici_departure, schur_parts, transient_norms

__all__ = [
    "KINDS",
    "Departure",
    "commutator",
    "fisher_memory_curve",
    "henrici_departure",
    "memory_function",
    "perturbation_error",
    "schur_parts",
    "spatial_fisher",
    "transient_norms",
]
