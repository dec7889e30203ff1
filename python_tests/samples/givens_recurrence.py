"""Samples of givens_recurrence."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from python_tests.samples.linear_scan import packed_sizes


class GivensCall(NamedTuple):
    """One call ``rnnkern.ops.givens_recurrence(**tensors, **kwargs)``."""

    tensors: dict[str, Tensor]
    kwargs: dict[str, Any]

    def leaves(self) -> dict[str, Tensor]:
        """The tensors that gradients flow to."""
        return self.tensors

    def to(self, dtype: torch.dtype) -> "GivensCall":
        """The same values in a real dtype; complex values in the complex dtype of that precision."""
        cast = {name: x.to(dtype.to_complex() if x.is_complex() else dtype) for name, x in self.tensors.items()}
        return GivensCall(cast, self.kwargs)


GIVENS_OPTIONS = {
    "plain": {},
    "reset": {"reset": True},
    "reverse": {"reverse": True},
    "packed": {"packed": True},
    "packed-reset-reverse": {"packed": True, "reset": True, "reverse": True},
}
"""Options of :func:`givens_recurrence_sample` besides sizes, style and dtype."""


def givens_recurrence_sample(
    steps: int = 5,
    batch: int = 3,
    size: int = 4,
    layers: int = 3,
    *,
    style: str = "tunable",
    packed: bool | Tensor = False,
    reset: bool = False,
    reverse: bool = False,
    dtype: torch.dtype = torch.float64,
) -> GivensCall:
    """Random arguments for :func:`rnnkern.ops.givens_recurrence`, drawn from torch's generator; with phases if the
    dtype is complex. Packed lengths decrease evenly from ``steps`` to 0, unless ``packed`` is the ``batch_sizes``
    themselves."""
    batch_sizes = packed_sizes(packed, steps, batch, 0)
    rows = (steps, batch) if batch_sizes is None else (int(batch_sizes.sum()),)
    kwargs: dict[str, Any] = {"style": style, "batch_sizes": batch_sizes, "reset": None, "reverse": reverse}
    if reset:
        kwargs["reset"] = torch.rand(steps, batch) < 0.3
    drawn = torch.complex128 if dtype.is_complex else torch.float64
    tensors = {
        "u": torch.randn(*rows, size, dtype=drawn),
        "angles": 4 * torch.randn(layers, size // 2, dtype=torch.float64),
        "state": torch.randn(batch, size, dtype=drawn),
        "modrelu_bias": 0.6 * torch.rand(size, dtype=torch.float64) - 0.3,
    }
    if dtype.is_complex:
        tensors["phases"] = 4 * torch.randn(layers, size // 2, dtype=torch.float64)
        tensors["diagonal_phases"] = 4 * torch.randn(size, dtype=torch.float64)
    return GivensCall(tensors, kwargs).to(dtype.to_real())
