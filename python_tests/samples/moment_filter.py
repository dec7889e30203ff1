"""Samples of moment_filter."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from python_tests.samples.agreement import with_gradients
from python_tests.samples.linear_scan import scan_sample


class Filtering(NamedTuple):
    """One call ``rnnkern.ops.moment_filter(u, (v0, q0), **kwargs)``."""

    u: Tensor
    v0: Tensor | None
    q0: Tensor | None
    kwargs: dict[str, Any]

    def leaves(self) -> dict[str, Tensor]:
        """The tensors that gradients flow to."""
        return {name: y for name, y in zip(("u", "v0", "q0"), self[:3], strict=True) if y is not None}

    def to(self, dtype: torch.dtype) -> "Filtering":
        """The same values in a dtype; states stay in float32 for 16-bit dtypes."""
        wide = torch.promote_types(dtype, torch.float32)

        def cast(y, dtype):
            return None if y is None else y.detach().to(dtype, copy=True)

        u, v0, q0, kwargs = self
        return Filtering(cast(u, dtype), cast(v0, wide), cast(q0, wide), kwargs)


def filtered(op: Any, u: Tensor, v0: Tensor | None = None, q0: Tensor | None = None, **kwargs: Any) -> tuple:
    """(y, v, q) of a call with these initial moments; q is None without a second moment."""
    y, state = op(u, None if v0 is None else (v0,) if q0 is None else (v0, q0), **kwargs)
    return y, *state, *[None] * (2 - len(state))


FILTER_OPTIONS = {
    "adam": {},
    "momentum": {"beta": None},
    "rmsprop": {"mu": 0.0, "initial": False},
    "momentum-packed-no state": {"beta": None, "packed": True, "initial": False},
    "momentum-reset-reverse": {"beta": None, "reset": True, "reverse": True},
    "reverse": {"reverse": True},
    "reset-no state": {"reset": True, "initial": False},
    "packed": {"packed": True},
    "packed-reset-reverse": {"packed": True, "reset": True, "reverse": True},
}
"""Options of :func:`filter_sample` besides sizes."""


def filter_sample(
    steps: int = 5,
    batch: int = 3,
    channels: int = 4,
    *,
    mu: float = 0.6,
    s: float = 0.7,
    beta: float | None = 0.9,
    dtype: torch.dtype = torch.float64,
    **layout: Any,
) -> Filtering:
    """Random arguments for :func:`rnnkern.ops.moment_filter`, drawn from torch's generator; ``layout`` as in
    :func:`scan_sample`."""
    _, u, v0, kwargs = scan_sample(steps, batch, channels, **layout)
    q0 = None if v0 is None or beta is None else torch.rand_like(v0)
    kwargs |= {"mu": mu, "s": s, "beta": beta, "eps": 0.05}
    return Filtering(u, v0, q0, kwargs).to(dtype)


def filter_outputs_and_gradients(op: Any, sample: Filtering, seed: int = 0) -> dict[str, Tensor]:
    """Runs a call and its backward pass with random gradients of all results; returns all results by name."""
    leaves = {name: y.detach().requires_grad_() for name, y in sample.leaves().items()}
    outputs = {name: y for name, y in zip("yvq", filtered(op, **leaves, **sample.kwargs), strict=True) if y is not None}
    return with_gradients(outputs, leaves, seed)
