"""Hypothesis strategies for calls of operators: layouts of tensors, packed lengths, SIMD levels and threads."""

import os
from contextlib import contextmanager

import torch
from hypothesis import settings
from hypothesis import strategies as st

FEW = settings(max_examples=int(os.environ.get("RNNKERN_EXAMPLES", "30")))
"""Random calls of a test; `make sanitize` asks for thousands. All are made in one process, so each meets what others
leave behind: cached memory, counters and teams of threads."""


@contextmanager
def machine(level, threads):
    before = torch.ops.rnnkern.set_simd_level(level), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.ops.rnnkern.set_simd_level(before[0])
        torch.set_num_threads(before[1])


@st.composite
def spread(draw, values):
    """The same values with their dimensions in any order in memory, and with NaN between them."""
    sizes = values.shape
    order = draw(st.permutations(range(len(sizes))))
    gaps = draw(st.tuples(*(st.integers(1, 3) for _ in sizes)))
    storage = values.new_full([sizes[d] * gap for d, gap in zip(order, gaps, strict=True)], float("nan"))
    view = storage[tuple(slice(gap - 1, None, gap) for gap in gaps)].permute(
        [order.index(d) for d in range(len(sizes))]
    )
    return view.copy_(values)


@st.composite
def laid_out_like(draw, values):
    """The same values in any memory layout, or the first row, expanded."""
    spread_out = draw(spread(values))
    return spread_out[:1].expand(values.shape) if draw(st.integers(0, 4)) == 0 and len(values) > 0 else spread_out


@st.composite
def batch_sizes_of(draw, steps, batch):
    """Non-increasing batch sizes, including sequences without steps and steps without sequences."""
    sizes = draw(st.lists(st.integers(0, batch), min_size=steps, max_size=steps))
    return torch.tensor(sorted(sizes, reverse=True), dtype=torch.int64)
