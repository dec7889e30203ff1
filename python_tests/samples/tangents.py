"""Calls of ops.recurrence_tangent, from the samples of the recurrence."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from python_tests.samples.recurrence import Sample, recurrence_sample
from rnnkern.reference._recurrence import cell_of


class TangentSample(NamedTuple):
    """One call ``rnnkern.ops.recurrence_tangent(*args, **kwargs)``."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def to(self, dtype: torch.dtype) -> "TangentSample":
        """The same values in a dtype."""

        def cast(x):
            if isinstance(x, (tuple, list)):
                return tuple(map(cast, x))
            return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

        return TangentSample(self.name, cast(self.args), {key: cast(value) for key, value in self.kwargs.items()})


def tangent_sample(
    cell: str, *sizes: int, count: int = 3, every: int = 0, forced: bool = True, **options: Any
) -> TangentSample:
    """Random arguments; ``sizes`` and ``options`` are those of :func:`recurrence_sample`. ``count`` is S; with
    ``forced``, u, R h, the bias and the params have tangents too."""
    return with_tangents(recurrence_sample(cell, *sizes, **options), count, every, forced)


def with_tangents(sample: Sample, count: int = 3, every: int = 0, forced: bool = True) -> TangentSample:
    """The arguments of a call of recurrence_tangent along the trajectory of a sample."""
    cell, u, R, state = sample.args
    facts = cell_of(cell)
    kwargs = {key: value for key, value in sample.kwargs.items() if key not in ("grad_scale",)}
    draw = lambda *shape: torch.randn(count, *shape).to(u)  # noqa: E731
    tangents = tuple(draw(*s.shape) for s in state)
    if forced:
        hidden = state[-1].shape[1]
        kwargs["u_tangent"] = draw(*u.shape[:-1], facts.gates * hidden)
        kwargs["r_tangent"] = None if facts.joint else draw(*u.shape[:-1], facts.recurrent * hidden)
        kwargs["bias_tangent"] = None if kwargs["bias"] is None else draw(facts.recurrent * hidden)
        kwargs["params_tangent"] = tuple(draw(*p.shape) for p in kwargs["params"])
    kwargs |= {"every": every, "sequence": not every}
    return TangentSample(sample.name, (cell, u, R, state, tangents), kwargs)
