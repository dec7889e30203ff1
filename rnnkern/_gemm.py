"""The GEMM reference of a recurrence: only its matrix products, each by the fastest available routine.

It is a yardstick, not a lower bound: a fused kernel can be faster, because its operands stay in the cache from one
product to the next. On a CPU the fastest routine is PyTorch's own product (MKL) or, for float32, that of oneDNN, which
is twice as fast on AMD processors: transposed or not, in blocks of rows that fit into the cache, and with a constant
factor packed in advance. On a GPU only PyTorch's product is used.
"""

import functools
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rnnkern._torch_private import has_onednn, lay_out, onednn

ROWS = 1024
"""Number of rows per block: a much larger result costs more for its newly allocated memory than for the product."""
PATIENCE = 5e-3
"""Seconds for finding the fastest routine."""

Job = Callable[[], object]


def gemm_reference(weights: Sequence[tuple[Tensor | None, Tensor]], sizes: Sequence[int]) -> dict[str, Job]:
    """Products of a stack of layers and directions: T products with R, one after the other, and the products over all
    steps at once.

    Args:
        weights: W (G*H, I) and R (G*H, H) of each layer and direction; W is None if the input is not projected.
        sizes: number of rows of each step.
    """
    ahead, back, rows = [], [], [sum(sizes)]
    for W, R in weights:
        given = [(M, n) for M, n in ((W, rows), (R, sizes)) if M is not None]
        inputs = [R.new_empty(*rows, M.shape[1]).normal_() for M, _ in given]
        du = R.new_empty(*rows, given[0][0].shape[0]).normal_()
        for y, (M, n) in zip(inputs, given, strict=True):
            ahead += products(y, M.t(), n)
        for M, n in reversed(given):
            back += products(du, M, n)
        for y in inputs:
            back += products(du.t(), y, [du.shape[1]], constant=False)
    return {"forward": functools.partial(run, ahead), "forward+backward": functools.partial(run, ahead + back)}


def run(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job()


def products(a: Tensor, b: Tensor, sizes: Sequence[int], constant: bool = True) -> list[Job]:
    """``a`` (M, K) times ``b`` (K, N), with ``sizes`` rows at a time; ``b`` may be packed in advance if it is
    constant."""
    out = a.new_empty(max(sizes), b.shape[1])
    laid = lay_out(b, min(max(sizes), ROWS)) if constant else b.t()
    fastest: dict[int, int] = {}  # for each number of rows, the index of the fastest way
    jobs = []
    for rows in a.split(list(sizes)):
        n = rows.shape[0]
        found = ways(rows, b, laid, out[:n])
        if n not in fastest:
            fastest[n] = least(found)
        jobs += found[fastest[n]]
    return jobs


def ways(a: Tensor, b: Tensor, laid: Tensor, out: Tensor) -> list[list[Job]]:
    """All ways to compute one product, each a list of calls. ``laid`` is the transpose of ``b``, possibly packed."""
    found = [[functools.partial(torch.mm, a, b, out=out)]]
    if has_onednn(a.dtype, a.device):
        found += [[onednn(rows, laid) for rows in a.split(ROWS)], [onednn(b.t(), a)]]
    return found


def least(found: Sequence[list[Job]]) -> int:
    """Index of the fastest way, by the minimum over several rounds, because the machine may be busy."""
    best, rounds, deadline = [float("inf")] * len(found), 0, time.perf_counter() + PATIENCE * len(found)
    while rounds < 3 or time.perf_counter() < deadline:
        for k, jobs in enumerate(found):
            begun = time.perf_counter()
            run(jobs)
            best[k] = min(best[k], time.perf_counter() - begun)
        rounds += 1
    return best.index(min(best))
