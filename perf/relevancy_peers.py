"""relevancy_recurrence in plain PyTorch: a loop over time, with all samples at once.

A call starts with an empty memory, and all sequences have the same length, so that the buffers of all samples contain
the same steps.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern.reference import CELLS


def cached_keys(
    cell: str,
    u: Tensor,
    R: Tensor,
    state: Sequence[Tensor],
    attention_weights: Sequence[Tensor],
    *,
    buffer_size: int,
    relevant_size: int,
    params: Sequence[Tensor] = (),
) -> Tensor:
    """h for ``combine="half"``, additive alignment and scores by attention. This is the optimized form: no loop over
    samples, the key of each event is computed once, and the products with R and W_a are one."""
    W_a, U_a, v = attention_weights
    s, *c = state
    batch, hidden = s.shape
    U_a_t, both = U_a.t(), torch.cat([R, W_a]).t()
    buffer: list[tuple[Tensor, ...]] = []  # (event, key)
    scores = s.new_zeros(batch, 0)
    relevant = [s.new_zeros(batch, relevant_size, hidden) for _ in range(2)]
    frozen = s.new_full((batch, relevant_size), -torch.inf)
    slots = torch.arange(relevant_size, device=s.device)
    outputs = []
    for u_t in u.unbind(0):
        products = s @ both
        old, r = (s, *c), products[:, :-hidden]
        h, *c = CELLS[cell].step(u_t, lambda _, r=r: r, old, *params)
        if len(buffer) == buffer_size:
            leaving, score = buffer.pop(0), scores[:, :1]
            scores = scores[:, 1:]
            if relevant_size:
                least, slot = frozen.min(1, keepdim=True)
                taken = (slots == slot) & (score > least)
                frozen = torch.where(taken, score, frozen)
                relevant = [torch.where(taken.unsqueeze(2), x.unsqueeze(1), kept)
                            for x, kept in zip(leaving, relevant, strict=True)]  # fmt: skip
        buffer.append((h, h @ U_a_t))
        scores = torch.cat([scores, scores.new_zeros(batch, 1)], 1)
        events, keys = (
            torch.cat([torch.stack(members, 1), kept], 1)
            for members, kept in zip(zip(*buffer, strict=True), relevant, strict=True)
        )
        e = torch.tanh(products[:, -hidden:].unsqueeze(1) + keys) @ v
        if relevant_size:
            e = torch.cat([e[:, : len(buffer)], e[:, len(buffer) :].masked_fill(frozen == -torch.inf, -torch.inf)], 1)
        alpha = torch.softmax(e, 1)
        s = 0.5 * (h + (alpha.unsqueeze(1) @ events).squeeze(1))
        scores = scores + alpha[:, : len(buffer)].detach()
        outputs.append(h)
    return torch.stack(outputs) if outputs else u.new_zeros(0, batch, hidden)


def recomputed_keys(
    cell: str,
    u: Tensor,
    R: Tensor,
    state: Sequence[Tensor],
    attention_weights: Sequence[Tensor],
    *,
    buffer_size: int,
    relevant_size: int,
    params: Sequence[Tensor] = (),
) -> Tensor:
    """The same in the form of the article's public code: each step stacks all events again and multiplies them by U_a,
    and a list per sample holds the relevant set, whose size must be at least 1."""
    W_a, U_a, v = attention_weights
    s, *c = state
    batch, hidden = s.shape
    buffer: list[Tensor] = []
    scores: list[Tensor] = []
    relevant: list[list[Tensor]] = [[] for _ in range(batch)]
    frozen: list[list[float]] = [[] for _ in range(batch)]
    mask = s.new_full((relevant_size, batch), -torch.inf)
    nothing = s.new_zeros(hidden)
    outputs = []
    for u_t in u.unbind(0):
        h, *c = CELLS[cell].step(u_t, lambda s: F.linear(s, R), (s, *c), *params)
        if len(buffer) == buffer_size:
            leaving, score, mask = buffer.pop(0), scores.pop(0).tolist(), mask.clone()
            for b, (members, found) in enumerate(zip(relevant, frozen, strict=True)):
                if len(members) < relevant_size:
                    mask[len(members), b] = 0
                    members.append(leaving[b])
                    found.append(score[b])
                elif score[b] > min(found):
                    slot = found.index(min(found))
                    members[slot], found[slot] = leaving[b], score[b]
        buffer.append(h)
        scores.append(h.new_zeros(batch))
        padded = [members + [nothing] * (relevant_size - len(members)) for members in relevant]
        kept = torch.stack([torch.stack(slot) for slot in zip(*padded, strict=True)])
        recent, query = torch.stack(buffer), F.linear(s, W_a)
        e = [torch.tanh(query + F.linear(events, U_a)) @ v for events in (recent, kept)]
        alpha = torch.softmax(torch.cat([e[0], e[1] + mask]), 0)
        scores = [score + a for score, a in zip(scores, alpha.detach(), strict=False)]
        s = 0.5 * (h + (alpha.unsqueeze(2) * torch.cat([recent, kept])).sum(0))
        outputs.append(h)
    return torch.stack(outputs) if outputs else u.new_zeros(0, batch, hidden)
