"""Attention over past states: relevancy attention, sparse attentive backtracking, and attention to listed memories.

T time steps, B samples, H hidden units and G gates of the cell."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern.reference._recurrence import CELLS, joined, rows_of

State = TypeVar("State", bound=tuple)

ALIGNMENTS = ("additive", "dot")
RELEVANCY_CELLS = ("tanh", "relu", "modrelu", "lstm")
FACTORS = {"half": 0.5, "sum": 1.0, "concat": 1.0}
"""Factor of h_t + c_t, or of [h_t, c_t], for each ``combine``."""
ABOVE_THRESHOLD = 1e-7
"""Added to the k-th largest score, and to the sum that normalizes the weights."""


# ---- methods of states, which are named tuples of tensors with B rows


def detach(self: State) -> State:
    """Returns the state detached from the graph, for truncated backpropagation through time."""
    return type(self)(*(part.detach() if isinstance(part, Tensor) else part for part in self))


def to(self: State, *args: Any, **kwargs: Any) -> State:
    """Like :meth:`torch.Tensor.to`; integer tensors change only their device."""
    device = torch.empty(0, device=self[0].device).to(*args, **kwargs).device

    def moved(part):
        if not isinstance(part, Tensor):
            return part
        return part.to(*args, **kwargs) if part.is_floating_point() else part.to(device)

    return type(self)(*map(moved, self))


def select_batch(self: State, index: Any) -> State:
    """Selects sequences by a slice, a list or tensor of indices, or a mask. (``state[i]`` selects a field of the
    tuple.)"""
    return type(self)(*(part[index] if isinstance(part, Tensor) else part for part in self))


# ---- relevancy attention inside a recurrence (Kerg 2022, ch. 4, algorithm 1): a state attends to a bounded set of its
# past. Computed per sample, directly from the definition.


class RelevancyState(NamedTuple):
    """The state of a relevancy recurrence. Event i is the state h of step i; an empty slot has id -1 and zeros. L, the
    number of buffer slots, is the smaller of ``buffer_size`` and the number of steps so far."""

    s: Tensor
    """(B, H): the state s; (B, 2H) if ``combine`` is "concat"."""
    c: Tensor | None
    """(B, H): the cell state of an LSTM; None for other cells."""
    buffer: Tensor
    """(B, L, H): the last events, event i in slot i mod ``buffer_size``."""
    buffer_scores: Tensor
    """(B, L): the current score of each event in the buffer."""
    buffer_ids: Tensor
    """(B, L) int64: the id of each event in the buffer."""
    relevant: Tensor
    """(B, ``relevant_size``, H): the relevant set."""
    scores: Tensor
    """(B, ``relevant_size``): the final score of each event in the relevant set."""
    ids: Tensor
    """(B, ``relevant_size``) int64: the id of each event in the relevant set."""
    time: Tensor
    """(B,) int64: number of steps so far; a reset does not restart it."""

    detach, to, select_batch = detach, to, select_batch


class RelevancyMemory(NamedTuple):
    """What each step attended to, as in :func:`rnnkern.ops.relevancy_recurrence`; no gradient flows through it."""

    weights: Tensor
    ids: Tensor


def empty_state(state: Sequence[Tensor], relevant_size: int, hidden: int | None = None) -> RelevancyState:
    """``(s0,)`` or ``(s0, c0)`` with an empty memory for events of ``hidden`` units; by default s0's size."""
    s, c = state[0], state[1] if len(state) > 1 else None
    batch, hidden = s.shape[0], hidden or s.shape[1]

    def ids(slots: int) -> Tensor:
        return torch.full((batch, slots), -1, dtype=torch.int64, device=s.device)

    time = torch.zeros(batch, dtype=torch.int64, device=s.device)
    return RelevancyState(
        s, c, s.new_zeros(batch, 0, hidden), s.new_zeros(batch, 0), ids(0),
        s.new_zeros(batch, relevant_size, hidden), s.new_zeros(batch, relevant_size), ids(relevant_size), time,
    )  # fmt: skip


def given_scores(relevance: str | Tensor, state: RelevancyState, steps: int) -> Tensor | None:
    """(T, B): the given scores of the next events, or None if attention determines them."""
    if isinstance(relevance, Tensor):
        return relevance
    if relevance == "attention":
        return None
    shape = (steps, state.s.shape[0])
    if relevance == "random":
        return torch.rand(shape, dtype=state.s.dtype, device=state.s.device)
    return (state.time + torch.arange(steps, device=state.s.device).unsqueeze(1)).to(state.s.dtype)  # "fifo"


class _Event:
    """A state in memory, with its id, its score, and a 0 whose gradient is that of the score."""

    def __init__(self, h: Tensor, id: int, score: Tensor):
        self.h, self.id, self.score = h, id, score.detach()
        self.through = torch.where(score.isfinite(), score - score.detach(), 0)


def relevancy_recurrence(
    cell: str, u: Tensor, R: Tensor, state: Sequence[Tensor] | RelevancyState, attention_weights: Sequence[Tensor], *,
    buffer_size: int, relevant_size: int, combine: str = "half", alignment: str = "additive",
    relevance: str | Tensor = "attention", params: Sequence[Tensor] = (), batch_sizes: Tensor | None = None,
    reset: Tensor | None = None, output: str = "h", return_memory: bool = False,
) -> tuple[Tensor, RelevancyState] | tuple[Tensor, RelevancyState, RelevancyMemory]:  # fmt: skip
    """Same arguments, shapes and results as :func:`rnnkern.ops.relevancy_recurrence`."""
    W_a, U_a, v = attention_weights
    batch, hidden = u.shape[1] if batch_sizes is None else state[0].shape[0], U_a.shape[0]
    if not isinstance(state, RelevancyState):
        state = empty_state(state, relevant_size, hidden)
    inputs = rows_of(u, batch_sizes)
    sizes, steps = [x.shape[0] for x in inputs], len(inputs)
    slots = min(buffer_size, state.buffer.shape[1] + steps)
    given = given_scores(relevance, state, steps)
    heads = v.shape[0] if v.dim() == 2 else 1
    step = CELLS[cell].step

    def product(s: Tensor) -> Tensor:
        return R @ s

    def score(query: Tensor, event: _Event) -> Tensor:
        """One value per head."""
        key = U_a @ event.h
        x = torch.tanh(query + key) if alignment == "additive" else query * key
        return (v.reshape(heads, -1) * x.view(heads, -1)).sum(-1) + event.through

    rows: list[list] = [[None] * size for size in sizes]  # (output, weights, ids) of each sample at each step
    ends = []
    for b in range(batch):
        s, c, time = state.s[b], None if state.c is None else state.c[b], int(state.time[b])
        buffer, relevant = [None] * slots, [None] * relevant_size
        for memory, events, scores, ids in (
            (buffer, state.buffer[b], state.buffer_scores[b], state.buffer_ids[b]),
            (relevant, state.relevant[b], state.scores[b], state.ids[b]),
        ):
            for k, id in enumerate(ids.tolist()):
                memory[k] = _Event(events[k], id, scores[k].detach()) if id >= 0 else None
        for t in range(sum(b < size for size in sizes)):
            if reset is not None and reset[t, b]:
                s, c = torch.zeros_like(s), None if c is None else torch.zeros_like(c)
                buffer, relevant = [None] * slots, [None] * relevant_size
            old = (s,) if c is None else (s, c)
            h, *rest = step(inputs[t][b], product, old, *params)
            c = rest[0] if rest else None
            if (leaving := buffer[time % buffer_size]) is not None:
                _screen(relevant, leaving)
            buffer[time % buffer_size] = _Event(h, time, v.new_zeros(()) if given is None else given[t, b])
            members = [event for event in buffer + relevant if event is not None]
            query = W_a @ s
            alpha = torch.softmax(torch.stack([score(query, event) for event in members]), 0)  # (members, heads)
            context = sum(
                (a.unsqueeze(1) * event.h.view(heads, -1)).flatten() for a, event in zip(alpha, members, strict=True)
            )
            s = torch.cat([h, context]) if combine == "concat" else FACTORS[combine] * (h + context)
            mean = alpha.detach().mean(1)
            if given is None:
                for a, event in zip(mean, members, strict=True):
                    if any(event is one for one in buffer):
                        event.score = event.score + a
            time += 1
            attention = iter(mean)
            maps = [v.new_zeros(()) if event is None else next(attention) for event in buffer + relevant]
            rows[t][b] = (
                h if output == "h" else s,
                torch.stack(maps),
                [event.id if event else -1 for event in buffer + relevant],
            )
        ends.append((s, c, *_stacked(buffer, U_a), *_stacked(relevant, U_a), time))

    done = [row for step_rows in rows for row in step_rows]
    shape = u.shape[:-1] if batch_sizes is None else (sum(sizes),)
    columns = hidden if output == "h" else state.s.shape[1]
    out = torch.stack([row[0] for row in done]).view(*shape, columns) if done else u.new_zeros(*shape, columns)
    if batch == 0:
        end = state._replace(buffer=u.new_zeros(0, slots, hidden), buffer_scores=u.new_zeros(0, slots),
                             buffer_ids=state.ids.new_zeros(0, slots))  # fmt: skip
    else:
        columns = list(zip(*ends, strict=True))
        c = None if state.c is None else torch.stack(columns.pop(1))
        if state.c is None:
            columns.pop(1)
        s, *memory, time = columns
        end = RelevancyState(torch.stack(s), c, *(torch.stack(x) for x in memory), torch.tensor(time).to(state.time))
    if not return_memory:
        return out, end
    kappa = slots + relevant_size
    alphas = torch.stack([row[1] for row in done]) if done else u.new_zeros(0)
    ids = torch.tensor([row[2] for row in done], dtype=torch.int64, device=u.device)
    return out, end, RelevancyMemory(alphas.view(*shape, kappa), ids.view(*shape, kappa))


def _screen(relevant: list[_Event | None], event: _Event) -> None:
    """An event that leaves the buffer takes an empty slot, or replaces the first event with the least score if its own
    score is greater."""
    if None in relevant:
        relevant[relevant.index(None)] = event
        return
    if not relevant:
        return
    least = 0
    for k in range(1, len(relevant)):
        if relevant[k].score < relevant[least].score:
            least = k
    if event.score > relevant[least].score:
        relevant[least] = event


def _stacked(memory: list[_Event | None], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden = like.shape[1]
    events = [like.new_zeros(hidden) if event is None else event.h for event in memory]
    scores = [like.new_zeros(()) if event is None else event.score for event in memory]
    ids = torch.tensor([-1 if event is None else event.id for event in memory], dtype=torch.int64, device=like.device)
    if not memory:
        return like.new_zeros(0, hidden), like.new_zeros(0), ids
    return torch.stack(events), torch.stack(scores), ids


# ---- sparse attentive backtracking (Ke et al. 2018): an LSTM that attends to a few of its past states, with the
# gradient of the recurrent path cut every few steps


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

    detach, to, select_batch = detach, to, select_batch


class SABMemory(NamedTuple):
    """What each step attended to, as in :func:`rnnkern.ops.sab_recurrence`; no gradient flows through it."""

    weights: Tensor
    slots: Tensor


def begin_sab(h0: Tensor, c0: Tensor) -> SABState:
    """The initial state of a sequence, whose memory is h0."""
    return SABState(h0, c0, h0.unsqueeze(1), torch.zeros(len(h0), dtype=torch.int64, device=h0.device), 0)


def sab_recurrence(
    u: Tensor, R: Tensor, state: Sequence[Tensor] | SABState, attention_weights: Sequence[Tensor], *, top_k: int,
    attend_every: int, truncation: int, alignment: str = "separable", bias: Tensor | None = None,
    batch_sizes: Tensor | None = None, reset: Tensor | None = None, return_memory: bool = False,
) -> tuple[Tensor, SABState] | tuple[Tensor, SABState, SABMemory]:  # fmt: skip
    """Same arguments, shapes and results as :func:`rnnkern.ops.sab_recurrence`."""
    h, c, memory, time, before = state if isinstance(state, SABState) else begin_sab(*state)
    batch, hidden = h.shape
    inputs = rows_of(u, batch_sizes)
    step = CELLS["lstm"].step
    *_, w = attention_weights

    def product(h: Tensor) -> Tensor:
        return F.linear(h, R, bias)

    def score(h: Tensor, memory: Tensor) -> Tensor:
        both = torch.cat([h.unsqueeze(1).expand_as(memory), memory], -1)
        return torch.tanh(both if alignment == "separable" else F.linear(both, attention_weights[0])) @ w

    outputs, weights, slots = [], [], []
    for t, u_t in enumerate(inputs):
        size = u_t.shape[0]
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

    def whole(rows: list[Tensor], columns: int, dtype: torch.dtype) -> Tensor:
        return joined(rows, batch_sizes, u, columns, dtype)

    out, end = whole(outputs, 2 * hidden, u.dtype), SABState(h, c, memory, time, before + len(inputs))
    if not return_memory:
        return out, end
    return out, end, SABMemory(whole(weights, top_k, u.dtype), whole(slots, top_k, torch.int32))


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


# ---- the alignment of Bahdanau et al. (2015) over a list of memories per query, with all queries known in advance


def gather_attention(
    q: Tensor, u: Tensor, h: Tensor, idx: Tensor, v: Tensor, *, alignment: str = "additive",
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
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
