"""Attention to listed memories, with all queries known in advance: the alignment of Bahdanau et al. (2015) over a list
of memories per query, as in the recurrence of Kerg 2022 (ch. 4)."""

import torch
from torch import Tensor

ALIGNMENTS = ("additive", "dot")


def gather_attention(
    q: Tensor,
    u: Tensor,
    h: Tensor,
    idx: Tensor,
    v: Tensor,
    *,
    alignment: str = "additive",
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Same arguments, shapes and results as :func:`rnnkern.ops.gather_attention`."""
    batch, memories, hidden = u.shape
    valid = (idx >= 0) & (idx < memories)
    place = torch.where(valid, idx, memories).long()
    sample = torch.arange(batch, device=q.device).view(-1, 1, 1)

    def members(x: Tensor) -> Tensor:  # (B, T, kappa, H); zeros for empty places
        return torch.cat([x, x.new_zeros(batch, 1, hidden)], 1)[sample, place]

    query, key = q.unsqueeze(2), members(u)
    v = v.view(-1, hidden)
    v = v.repeat_interleave(batch // v.shape[0], 0).view(batch, 1, 1, hidden)
    scores = (v * (torch.tanh(query + key) if alignment == "additive" else query * key)).sum(-1)
    scores = scores.masked_fill(~valid, -torch.inf).masked_fill(~valid.any(-1, keepdim=True), 0)
    alpha = torch.softmax(scores, -1).masked_fill(~valid, 0)
    out = (alpha.unsqueeze(-1) * members(h)).sum(2)
    return (out, alpha.detach()) if return_weights else out
