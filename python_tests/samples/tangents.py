"""Calls of ops.recurrence_tangent, from the samples of the recurrence; and the table of operators that are derived from
it."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from python_tests.gpu.recurrences import KINKS, off_kinks
from python_tests.samples.agreement import draws
from python_tests.samples.recurrence import EVERY_CELL, RECURRENCE_OPTIONS, Sample, recurrence_sample, takes
from rnnkern.reference._recurrence import cell_of

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
DERIVED_ROWS = [
    (cell, option, dtype)
    for cell, (option, given), dtype in itertools.product(EVERY_CELL, RECURRENCE_OPTIONS.items(), DTYPES)
    if takes(cell, given) and not (cell in KINKS and "inputs" in given and dtype != torch.float64)
]
"""Cells, options and dtypes, in low precision without calls whose u cannot be moved away from kinks."""


def derived_draws(cell: str, option: str, dtype: torch.dtype, *sizes: int) -> Iterator[Sample]:
    """Endless random samples of a row."""
    options = RECURRENCE_OPTIONS[option]
    samples = draws(recurrence_sample, cell, *sizes, **options, dtype=dtype)
    return samples if "inputs" in options else map(off_kinks, samples)


def tangent_sample(
    cell: str, *sizes: int, count: int = 3, every: int = 0, forced: bool = True, **options: Any
) -> Sample:
    """Random arguments; ``sizes`` and ``options`` are those of :func:`recurrence_sample`. ``count`` is S; with
    ``forced``, u, R h, the bias and the params have tangents too."""
    return with_tangents(recurrence_sample(cell, *sizes, **options), count, every, forced)


def with_tangents(sample: Sample, count: int = 3, every: int = 0, forced: bool = True) -> Sample:
    """The arguments of a call of recurrence_tangent along the trajectory of a sample."""
    cell, u, R, state = sample.args
    facts = cell_of(cell)
    kwargs = {key: value for key, value in sample.kwargs.items() if key != "grad_scale"}
    draw = lambda *shape: torch.randn(count, *shape).to(u)  # noqa: E731
    tangents = tuple(draw(*s.shape) for s in state)
    if forced:
        hidden = state[-1].shape[1]
        kwargs["u_tangent"] = draw(*u.shape[:-1], facts.gates * hidden)
        kwargs["r_tangent"] = None if facts.joint else draw(*u.shape[:-1], facts.recurrent * hidden)
        kwargs["bias_tangent"] = None if kwargs["bias"] is None else draw(facts.recurrent * hidden)
        kwargs["params_tangent"] = tuple(draw(*p.shape) for p in kwargs["params"])
    kwargs |= {"every": every, "sequence": not every}
    return Sample(sample.name, (cell, u, R, state, tangents), kwargs)
