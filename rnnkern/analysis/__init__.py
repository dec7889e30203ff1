"""Tools that measure what recurrent models and their weights do, in plain PyTorch."""

from rnnkern.analysis._fixed_points import (
    ZeroPoint,
    bifurcation,
    fixed_points,
    marginal,
    phase,
    pinching_rate,
    shaping,
    zero_point,
)
from rnnkern.analysis._gains import Gains
from rnnkern.analysis._gradients import dependency_depth, gradient_norms
from rnnkern.analysis._jacobian import jacobian
from rnnkern.analysis._layers import unit_samples
from rnnkern.analysis._lyapunov import Spectrum, kaplan_yorke, lyapunov_spectrum
from rnnkern.analysis._mean_field import MeanField, mean_field
from rnnkern.analysis._memory import memory_function, perturbation_error
from rnnkern.analysis._nonnormal import (
    Departure,
    commutator,
    fisher_memory_curve,
    henrici_departure,
    schur_parts,
    spatial_fisher,
    transient_norms,
)
from rnnkern.analysis._slow import expected_slow_fraction, participation, slow_fraction, squared_singular_values
from rnnkern.analysis._spectral import (
    Support,
    UnitSamples,
    fixed_point_support,
    spectral_boundary,
    spectral_edge,
    spectral_function,
    spectral_support,
)

__all__ = [
    "Departure", "Gains", "MeanField", "Spectrum", "Support", "UnitSamples", "ZeroPoint",
    "bifurcation", "commutator", "dependency_depth", "expected_slow_fraction", "fisher_memory_curve",
    "fixed_point_support", "fixed_points", "gradient_norms", "henrici_departure", "jacobian", "kaplan_yorke",
    "lyapunov_spectrum", "marginal", "mean_field", "memory_function", "participation", "perturbation_error", "phase",
    "pinching_rate", "schur_parts", "shaping", "slow_fraction", "spatial_fisher", "spectral_boundary", "spectral_edge",
    "spectral_function", "spectral_support", "squared_singular_values", "transient_norms",
    "unit_samples", "zero_point",
]  # fmt: skip
