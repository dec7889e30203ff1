"""Similarity of a few objects, with context normalization, and the memory of an emergent symbol binding network.

Sources: Webb et al. 2020 (normalization), Kerg et al. 2022 (a masked softmax of the products of all pairs), Webb et
al. 2021 (the network)."""

from collections.abc import Sequence

import torch
from torch import Tensor

NORMS = ("unbiased", "biased", None)
MASKS = ("causal", "strict", "full")


def similarity(
    x: Tensor, y: Tensor | None = None, *, weight: Tensor | None = None, bias: Tensor | None = None,
    norm: str | None = "unbiased", eps: float = 1e-8, segments: Sequence[int] | None = None,
    lengths: Tensor | None = None, mask: str = "causal", scale: float = 1.0, values: Tensor | None = None,
    packed: bool = False, return_scores: bool = False,
) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
    """Same arguments, shapes and results as :func:`rnnkern.ops.similarity`."""
    z_x, z_y = (
        context_norm(part, weight, bias, norm=norm, eps=eps, segments=segments, lengths=lengths)
        for part in (x, x if y is None else y)
    )
    member = members(x.shape[1], mask, lengths, x.device)
    scores = (scale * z_x @ z_y.mT).masked_fill(~member, 0)
    logits = scores.masked_fill(~member, -torch.inf).masked_fill(~member.any(-1, keepdim=True), 0)
    R = torch.softmax(logits, -1).masked_fill(~member, 0)
    return results(R, scores, values, mask, lengths, packed, return_scores)


def results(
    R: Tensor, scores: Tensor, values: Tensor | None, mask: str, lengths: Tensor | None, packed: bool, with_scores: bool
) -> Tensor | tuple[Tensor, ...]:
    """What the arguments ask for: R alone, or a tuple of R, the scores and the product."""
    product = [] if values is None else [R @ values.masked_fill(~present(R.shape[1], lengths, R.device), 0)]
    if packed:
        rows, columns = torch.tril_indices(R.shape[1], R.shape[1], -1 if mask == "strict" else 0, device=R.device)
        R, scores = (square[:, rows, columns] for square in (R, scores))
    found = R, *([scores] if with_scores else []), *product
    return found if len(found) > 1 else R


def present(objects: int, lengths: Tensor | None, device: torch.device) -> Tensor:
    """Which objects of each sample there are, (B or 1, T, 1)."""
    count = torch.full((1,), objects, device=device) if lengths is None else lengths
    return (torch.arange(objects, device=device) < count.unsqueeze(1)).unsqueeze(2)


def members(objects: int, mask: str, lengths: Tensor | None, device: torch.device) -> Tensor:
    """Which columns each row of R has, (B or 1, T, T)."""
    there = present(objects, lengths, device)
    i, j = torch.arange(objects, device=device).view(-1, 1), torch.arange(objects, device=device)
    return there & there.mT & {"causal": j <= i, "strict": j < i, "full": j == j}[mask]


def context_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, norm: str | None = "unbiased",
    eps: float = 1e-8, segments: Sequence[int] | None = None, lengths: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Normalizes each feature over the objects of each segment: (B, T, d) to (B, T, d), 0 for objects beyond a
    length."""
    there = present(x.shape[1], lengths, x.device)
    x = x.masked_fill(~there, 0)
    if norm is None:
        return x
    sizes = list(segments or x.shape[1:2])
    parts = []
    for part, inside in zip(x.split(sizes, 1), there.split(sizes, 1), strict=True):
        count = inside.sum(1, keepdim=True)
        centred = (part - part.sum(1, keepdim=True) / count.clamp(min=1)).masked_fill(~inside, 0)
        var = centred.square().sum(1, keepdim=True) / (count - int(norm == "unbiased")).clamp(min=1)
        parts.append(centred / torch.where(count > 1, var + eps, 1).sqrt())  # a single object becomes the bias
    z = torch.cat(parts, 1)
    return z if weight is None else (weight * z + bias).masked_fill(~there, 0)


def binding_recurrence(w: Tensor, conf: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Same arguments, shapes and results as :func:`rnnkern.ops.binding_recurrence`."""
    W_ih, W_hh, b_ih, b_hh, W_k, b_k, w_g, b_g = weights
    W, b = torch.cat([W_ih, W_hh], 1).T, b_ih + b_hh
    batch, objects, _ = w.shape
    read, h, c = (w.new_zeros(1, size) for size in (W_ih.shape[1], W_hh.shape[1], W_hh.shape[1]))
    keys: list[Tensor] = []
    for t in range(objects + 1):
        i, f, g, o = torch.addmm(b, torch.cat([read, h], 1), W).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        if t == objects:
            break
        gate = torch.sigmoid(h @ w_g.T + b_g)
        if t < objects - 1:
            keys.append(torch.relu(h @ W_k.T + b_k))
        if t == 1:  # until here all samples are alike
            gate, h, c, *keys = (part.expand(batch, -1) for part in (gate, h, c, *keys))
        if t > 0:
            bound = torch.bmm(w[:, t : t + 1, :t], torch.stack(keys[:t], 1)).squeeze(1)
            read = gate * torch.cat([bound, conf[:, t : t + 1]], 1)
    return h.expand(batch, -1)
