"""relevancy_recurrence as one writes it in plain PyTorch: all samples at once, a loop over time.

The call begins with nothing remembered; lengths are the same, so that all samples' buffers hold the same steps.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnkern.reference import CELLS


def cached_keys(*args, **sizes) -> Tensor:
    """The strong form: the key of an event is computed once, with the products with V and W_a in one."""
    return _relevancy(*args, **sizes, cached=True)


def recomputed_keys(*args, **sizes) -> Tensor:
    """As the public code of the article has it: U_a times all that is remembered, at each step."""
    return _relevancy(*args, **sizes, cached=False)


def _relevancy(
    cell: str,
    u: Tensor,
    weights: Sequence[Tensor],
    state: Sequence[Tensor],
    *,
    buffer_size: int,
    relevant_size: int,
    params: Sequence[Tensor] = (),
    cached: bool,
) -> Tensor:
    """h; with ``mix="half"``, additive alignment and screening by attention."""
    V, W_a, U_a, v = weights
    s, *c = state
    batch, hidden = s.shape
    U_a_t, both = U_a.t(), torch.cat([V, W_a]).t()
    buffer: list[tuple[Tensor, ...]] = []  # (event, key)
    scores = s.new_zeros(batch, 0)
    relevant = [s.new_zeros(batch, relevant_size, hidden) for _ in range(2 if cached else 1)]
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
        buffer.append((h, h @ U_a_t) if cached else (h,))
        scores = torch.cat([scores, scores.new_zeros(batch, 1)], 1)
        events, *keys = (
            torch.cat([torch.stack(members, 1), kept], 1)
            for members, kept in zip(zip(*buffer, strict=True), relevant, strict=True)
        )
        keys = keys[0] if cached else events @ U_a_t
        e = torch.tanh(products[:, -hidden:].unsqueeze(1) + keys) @ v
        if relevant_size:
            e = torch.cat([e[:, : len(buffer)], e[:, len(buffer) :].masked_fill(frozen == -torch.inf, -torch.inf)], 1)
        alpha = torch.softmax(e, 1)
        s = 0.5 * (h + (alpha.unsqueeze(1) @ events).squeeze(1))
        scores = scores + alpha[:, : len(buffer)].detach()
        outputs.append(h)
    return torch.stack(outputs) if outputs else u.new_zeros(0, batch, hidden)
