"""Samples of gather_attention."""

from typing import Any

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


def gather_outputs_and_gradients(op: Any, call: tuple[tuple[Tensor, ...], str]) -> dict[str, Tensor]:
    """Runs a call, a sample and an alignment, and its backward pass with random gradients; returns all results by
    name."""
    (q, u, h, idx, v), alignment = call
    q, u, h, v = leaves = [x.detach().requires_grad_() for x in (q, u, h, v)]
    out, weights = op(q, u, h, idx, v, alignment=alignment, return_weights=True)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(out)
    gradients = torch.autograd.grad(out, leaves, upstream)
    named = {f"grad of {name}": g for name, g in zip("quhv", gradients, strict=True)}
    return {"out": out.detach(), "weights": weights, **named}
