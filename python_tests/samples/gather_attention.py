"""Samples of gather_attention."""

import torch
from torch import Tensor


def gather_sample(
    batch: int = 2,
    queries: int = 5,
    memories: int = 7,
    slots: int = 4,
    hidden: int = 9,
    *,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Random (q, u, h, idx, v) for :func:`rnnkern.ops.gather_attention`, drawn from torch's generator. The lists
    contain -1, a repeated memory, and in each sample an empty list. Scores are of order 1, so that no weight is all."""
    q, u, h = (torch.randn(batch, rows, hidden) for rows in (queries, memories, memories))
    q, v = q / hidden**0.5, torch.randn(hidden) / hidden**0.5
    idx = torch.randint(-1, memories, (batch, queries, slots), dtype=torch.int32)
    if slots > 2:
        idx[..., 1], idx[..., 2] = idx[..., 0], (idx[..., 0] + 1) % memories
    idx[:, :1] = -1
    q, u, h, v = (x.to(dtype) for x in (q, u, h, v))
    return q, u, h, idx, v
