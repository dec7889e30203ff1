"""Sparse attentive backtracking (Ke et al. 2018): an LSTM that attends to a few of its past states, with the gradient
of the recurrent path cut every few steps. T time steps, B samples, H hidden units, k = ``top_k``."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern.reference import _state
from rnnkern.reference._recurrence import CELLS

ABOVE_THRESHOLD = 1e-7
"""Added to the k-th largest score, and to the sum that normalizes the weights."""


class SABState(NamedTuple):
    """The state of sparse attentive backtracking. The sequence of a sample starts with its initial state or at a reset.
    Slot 0 holds the h at its start, and slot j holds h after ``j * attend_every`` steps. Unused slots are zero."""

    h: Tensor
    """(B, H): the hidden state."""
    c: Tensor
    """(B, H): the cell state."""
    memory: Tensor
    """(B, L, H): the memories, in L = 1 + ``steps // attend_every`` slots."""
    time: Tensor
    """(B,) int64: number of steps so far in the sequence of each sample."""
    steps: int
    """Number of steps so far, regardless of resets."""

    detach = _state.detach
    to = _state.to
    select_batch = _state.select_batch


class SABMemory(NamedTuple):
    """What each step attended to, as in :func:`rnnkern.ops.sab_recurrence`; no gradient flows through it."""

    weights: Tensor
    slots: Tensor


def begin_sab(h0: Tensor, c0: Tensor) -> SABState:
    """The initial state of a sequence, whose memory is h0."""
    return SABState(h0, c0, h0.unsqueeze(1), torch.zeros(len(h0), dtype=torch.int64, device=h0.device), 0)


def sab_recurrence(
    u: Tensor,
    R: Tensor,
    state: Sequence[Tensor] | SABState,
    attention_weights: Sequence[Tensor],
    *,
    top_k: int,
    attend_every: int,
    truncation: int,
    alignment: str = "separable",
    bias: Tensor | None = None,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    return_memory: bool = False,
) -> tuple[Tensor, SABState] | tuple[Tensor, SABState, SABMemory]:
    """Same arguments, shapes and results as :func:`rnnkern.ops.sab_recurrence`."""
    h, c, memory, time, before = state if isinstance(state, SABState) else begin_sab(*state)
    batch, hidden = h.shape
    sizes = [batch] * len(u) if batch_sizes is None else batch_sizes.tolist()
    inputs = u.unbind(0) if batch_sizes is None else u.split(sizes)
    step = CELLS["lstm"].step
    *_, w = attention_weights

    def product(h: Tensor) -> Tensor:
        return F.linear(h, R, bias)

    def score(h: Tensor, memory: Tensor) -> Tensor:
        both = torch.cat([h.unsqueeze(1).expand_as(memory), memory], -1)
        return torch.tanh(both if alignment == "separable" else F.linear(both, attention_weights[0])) @ w

    outputs, weights, slots = [], [], []
    for t, (u_t, size) in enumerate(zip(inputs, sizes, strict=True)):
        alive = torch.arange(batch, device=u.device) < size
        if reset is not None:
            fresh = reset[t] & alive
            h, c = (torch.where(_column(fresh), 0, x) for x in (h, c))
            memory = torch.where(fresh.view(-1, 1, 1), 0, memory)
            time = torch.where(fresh, 0, time)
        cut = _column((time + 1) % truncation == 0)
        old = tuple(torch.where(cut, x.detach(), x)[:size] for x in (h, c))
        h_, c_ = step(u_t, product, old)
        held = torch.arange(memory.shape[1], device=u.device) <= _column(time // attend_every)
        weight, slot = _attention(score(h_, memory[:size]), held[:size], top_k)
        context = torch.einsum("bl,bln->bn", weight, memory[:size])
        h_ = h_ + context
        h, c = torch.cat([h_, h[size:]]), torch.cat([c_, c[size:]])
        outputs.append(torch.cat([h_, context], -1))
        weights.append(torch.where(slot >= 0, weight.detach().gather(1, slot.clamp_min(0)), 0))
        slots.append(slot.to(torch.int32))

        time = torch.where(alive, time + 1, time)
        if (before + t + 1) % attend_every == 0:
            memory = F.pad(memory, (0, 0, 0, 1))
        here = torch.arange(memory.shape[1], device=u.device) == _column(time // attend_every)
        here = here & _column(alive & (time % attend_every == 0))
        memory = torch.where(here.unsqueeze(-1), h.unsqueeze(1), memory)

    def joined(rows: list[Tensor], columns: int, dtype: torch.dtype) -> Tensor:
        if not rows:
            return u.new_zeros(*u.shape[:-1], columns, dtype=dtype)
        return torch.stack(rows) if batch_sizes is None else torch.cat(rows)

    out, end = joined(outputs, 2 * hidden, u.dtype), SABState(h, c, memory, time, before + len(sizes))
    if not return_memory:
        return out, end
    return out, end, SABMemory(joined(weights, top_k, u.dtype), joined(slots, top_k, torch.int32))


def _attention(e: Tensor, held: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The weights (B, L) of the memories in use, from their scores, and the attended slots (B, k). Of equal scores,
    that of the older memory counts as larger."""
    size, count = e.shape[1], held.sum(1, keepdim=True)
    slot = torch.arange(k, device=e.device).expand(len(e), k)
    slot = torch.where(slot < count, slot, -1)
    raw = e.masked_fill(~held, 0)
    if size <= k:
        return raw, slot
    e = e.masked_fill(~held, -torch.inf)
    ordered, order = e.sort(dim=1, descending=True, stable=True)
    more = count > k
    delta = torch.where(more, ordered[:, k - 1 : k], 0) + ABOVE_THRESHOLD
    over = torch.relu(e - delta)
    sparse = over / (over.sum(1, keepdim=True) + ABOVE_THRESHOLD)
    return torch.where(more, sparse, raw), torch.where(more, order[:, :k], slot)


def _column(x: Tensor) -> Tensor:
    return x.unsqueeze(1)
