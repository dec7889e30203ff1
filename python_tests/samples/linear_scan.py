"""Samples of linear_scan."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from python_tests.samples.agreement import with_gradients


class Scan(NamedTuple):
    """One call ``rnnkern.ops.linear_scan(a, x, state, **kwargs)``."""

    a: Tensor
    x: Tensor
    state: Tensor | None
    kwargs: dict[str, Any]

    def leaves(self) -> dict[str, Tensor]:
        """The tensors that gradients flow to."""
        return {name: y for name, y in zip(("a", "x", "state"), self[:3], strict=True) if y is not None}

    def to(self, dtype: torch.dtype) -> "Scan":
        """The same values in a dtype; complex values in the complex dtype of that precision."""
        dtype = dtype.to_complex() if self.x.is_complex() and not dtype.is_complex else dtype

        def cast(y):
            return None if y is None else y.detach().to(dtype, copy=True)

        return Scan(*map(cast, self[:3]), self.kwargs)


SCAN_OPTIONS = {
    "constant": {},
    "per step": {"per_step": True},
    "no h0": {"initial": False},
    "reverse": {"reverse": True},
    "reset": {"reset": True},
    "packed": {"packed": True},
    "per step-reverse": {"per_step": True, "reverse": True},
    "per step-packed": {"per_step": True, "packed": True},
    "packed-reverse": {"packed": True, "reverse": True},
    "packed-reset-reverse": {"packed": True, "reset": True, "reverse": True},
    "per step-packed-reset-reverse-no h0": {
        "per_step": True,
        "packed": True,
        "reset": True,
        "reverse": True,
        "initial": False,
    },
    "per step-reset": {"per_step": True, "reset": True},
}
"""Options of :func:`scan_sample` besides sizes."""


def packed_sizes(packed: bool | Tensor, steps: int, batch: int, least: int) -> Tensor | None:
    """``batch_sizes`` of lengths that decrease evenly from ``steps`` to ``least``, those that are given, or None."""
    if isinstance(packed, Tensor) or not packed:
        return packed if isinstance(packed, Tensor) else None
    lengths = torch.linspace(steps, least, batch).round().long()
    return (lengths[None, :] > torch.arange(steps)[:, None]).sum(1)


def scan_sample(
    steps: int = 5,
    batch: int = 3,
    channels: int = 4,
    *,
    per_step: bool = False,
    initial: bool = True,
    packed: bool | Tensor = False,
    reset: bool = False,
    reverse: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Scan:
    """Random arguments for :func:`rnnkern.ops.linear_scan`, drawn from torch's generator: factors have magnitudes from
    0.5 to 1 and any sign or phase. Packed lengths decrease evenly from ``steps`` to 1, unless ``packed`` is the
    ``batch_sizes`` themselves."""
    if packed is True and not initial and not steps:
        batch = 0  # the arguments do not determine it
    batch_sizes = packed_sizes(packed, steps, batch, min(steps, 1))
    rows = (steps, batch) if batch_sizes is None else (int(batch_sizes.sum()),)
    drawn = dtype if dtype.is_complex else torch.float64
    a = torch.randn(*(rows if per_step else ()), channels, dtype=drawn)
    a = a / a.abs().clamp_min(1e-6) * (0.5 + 0.5 * torch.rand(a.shape))
    x, h0 = torch.randn(*rows, channels, dtype=drawn), torch.randn(batch, channels, dtype=drawn)
    kwargs = {"batch_sizes": batch_sizes, "reverse": reverse}
    if reset:
        kwargs["reset"] = torch.rand(steps, batch) < 0.3
    return Scan(a, x, h0 if initial else None, kwargs).to(dtype)


def scan_outputs_and_gradients(op: Any, sample: Scan, seed: int = 0) -> dict[str, Tensor]:
    """Runs a call and its backward pass with random gradients of h and the final state; returns all results by name."""
    leaves = {name: y.detach().requires_grad_() for name, y in sample.leaves().items()}
    h, last = op(**leaves, **sample.kwargs)
    return with_gradients({"h": h, "final state": last}, leaves, seed)
