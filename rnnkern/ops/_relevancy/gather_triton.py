"""Launches the Triton kernels of gather_attention: a program per query, and backward one per piece of a memory's pairs.

A pair is a query and a place in its list.

Sorting the lists by memory gives the pairs of each memory. Nothing synchronizes with the device: the number of programs
suffices for any lists.
"""

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops.triton_launch import OPTIONS, block_of, kernels_of

TILE = 2048
"""Number of key values that a program holds at once."""
ROWS = 4
"""Number of queries per program of the backward pass; their gradients of v form one row."""
PIECE = 64
"""Number of pairs of a memory that one program sums."""

kernels = kernels_of("gather_attention")


def _blocks(hidden: int, count: int) -> tuple[int, int]:
    """Block sizes for the list and for the units."""
    units = block_of(hidden)
    return max(1, min(block_of(count), TILE // units)), units


def _sizes(q: Tensor, u: Tensor, idx: Tensor, v: Tensor) -> tuple[int, ...]:
    """(T, M, kappa, H, number of samples per row of v)."""
    return q.shape[1], u.shape[1], idx.shape[2], q.shape[2], q.shape[0] // v.shape[0]


def forward(
    q: Tensor, u: Tensor, h: Tensor, idx: Tensor, v: Tensor, dot: bool, training: bool, weights: bool
) -> list[Tensor]:
    q, u, h, idx, v = (x.contiguous() for x in (q, u, h, idx, v))
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:2])
    alpha = q.new_empty(idx.shape) if weights else None
    if lse.numel():
        block_k, block_n = _blocks(q.shape[2], idx.shape[2])
        options = {"DOT": dot, "BLOCK_K": block_k, "BLOCK_N": block_n, "num_warps": 4} | OPTIONS
        sizes, grid = _sizes(q, u, idx, v), (lse.numel(),)
        kernels().forward[grid](q, u, h, idx, v, out, lse, *sizes, **options)
        if weights:
            kernels().weigh[grid](q, u, idx, v, lse, alpha, *sizes, **options)
    return [out, *([lse] if training else []), *([alpha] if weights else [])]


def backward(
    grad: Tensor, q: Tensor, u: Tensor, h: Tensor, idx: Tensor, v: Tensor, lse: Tensor, dot: bool
) -> list[Tensor]:
    grad, q, u, h, idx, v, lse = (x.contiguous() for x in (grad, q, u, h, idx, v, lse))
    if not (idx.numel() and u.numel()):
        return [torch.zeros_like(x) for x in (q, u, h, v)]
    batch, hidden = q.shape[0], q.shape[2]
    steps, memories, slots, _, share = sizes = _sizes(q, u, idx, v)
    block_k, block_n = _blocks(hidden, slots)
    options = {"DOT": dot, "BLOCK_N": block_n, "num_warps": 4} | OPTIONS

    alpha, grad_scores = q.new_empty(idx.shape), q.new_empty(idx.shape)
    programs = -(-steps // ROWS)
    grad_q, to_v = torch.empty_like(q), q.new_empty(batch * programs, hidden)
    kernels().backward_queries[(batch * programs,)](
        grad, q, u, h, idx, v, lse, alpha, grad_scores, grad_q, to_v, *sizes, ROWS=ROWS, BLOCK_K=block_k, **options
    )
    grad_v = to_v.view(v.shape[0], -1, hidden).sum(1)

    grad_u, grad_h = torch.empty_like(u), torch.empty_like(h)
    order, begins, pieces, firsts, spares, memory_of = _by_memory(idx, memories)
    spare_u, spare_h = (q.new_empty(2 * (idx.numel() // PIECE) + 1, hidden) for _ in range(2))
    kernels().backward_memories[(memory_of.numel(),)](
        grad, q, u, v, alpha, grad_scores, order, begins, pieces, firsts, spares, memory_of, grad_u, grad_h, spare_u,
        spare_h, batch * memories, memories, slots, hidden, share, PIECE=PIECE, BLOCK_P=_blocks(hidden, PIECE)[0],
        **options,
    )  # fmt: skip
    kernels().add_pieces[(batch * memories,)](
        pieces, spares, spare_u, spare_h, grad_u, grad_h, hidden, BLOCK_N=block_n, num_warps=4, **OPTIONS
    )
    return [grad_q, grad_u, grad_h, grad_v]


def _by_memory(idx: Tensor, memories: int) -> tuple[Tensor, ...]:
    """Sorts the pairs by memory and divides those of each memory into pieces.

    Returns:
        order: the pairs, sorted by memory, as indices into ``idx``.
        begins: for each memory, where its pairs begin; with one more entry at the end.
        pieces: for each memory, the number of its pieces, at least 1.
        firsts: for each memory, the index of its first piece among all pieces.
        spares: for each memory, the index of its first piece among the pieces of memories with several pieces.
        memory_of: for each piece, its memory; for an unused piece, the number of memories.
    """
    count = idx.shape[0] * memories
    sample = torch.arange(idx.shape[0], device=idx.device).view(-1, 1, 1)
    named = torch.where((idx >= 0) & (idx < memories), sample * memories + idx, count)
    found, order = torch.sort(named.flatten(), stable=True)
    begins = torch.searchsorted(found, torch.arange(count + 1, device=idx.device))
    pieces = ((begins.diff() + PIECE - 1) // PIECE).clamp_min(1)
    ends, several = pieces.cumsum(0), torch.where(pieces > 1, pieces, 0)
    most = count + idx.numel() // PIECE
    memory_of = torch.searchsorted(ends, torch.arange(most, device=idx.device), right=True)
    return order, begins, pieces, ends - pieces, several.cumsum(0) - several, memory_of


if _extension.available:
    torch.library.impl("rnnkern::gather_attention", "CUDA")(forward)
    torch.library.impl("rnnkern::gather_attention_backward", "CUDA")(backward)
