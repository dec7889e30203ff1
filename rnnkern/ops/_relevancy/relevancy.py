"""Relevancy attention inside a recurrence: the public function, its checks and its choice of implementation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern.ops._relevancy.autograd import by_operator, parted
from rnnkern.ops.checks import check_choice, check_flags, check_group, check_input, check_like, check_shape, check_steps
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, cuda_refusal, name_of, operator, told
from rnnkern.reference import CELLS, RelevancyMemory, RelevancyState
from rnnkern.reference._relevancy import FACTORS, RELEVANCY_CELLS

OP = "relevancy_recurrence"
CHOICES = {
    "combine": tuple(FACTORS),
    "alignment": ("additive", "dot"),
    "relevance": ("attention", "random", "fifo"),
    "output": ("h", "s"),
}


def _check(cell, u, R, state, attention_weights, buffer_size, relevant_size, combine, alignment, relevance, params,
           batch_sizes, reset, output, return_memory) -> int:  # fmt: skip
    """Checks the arguments and returns T."""
    check_choice(OP, "cell", cell, RELEVANCY_CELLS)
    _, gates, states, names, *_ = CELLS[cell]
    check_input(OP, "u", u, batch_sizes, "G*H")
    check_flags(OP, return_memory=return_memory)
    for name, choice in (("combine", combine), ("alignment", alignment), ("relevance", relevance), ("output", output)):
        if not (isinstance(choice, Tensor) and name == "relevance"):
            check_choice(OP, name, choice, CHOICES[name])
    for name, size, least in (("buffer_size", buffer_size, 1), ("relevant_size", relevant_size, 0)):
        if isinstance(size, bool) or not isinstance(size, int) or size < least:
            raise ValueError(f"{OP}: `{name}` must be an integer of at least {least}, got {size!r}")
    check_like(OP, "R", R, "u", u)
    groups = {"attention_weights": (attention_weights, ("W_a", "U_a", "v")), "params": (params, names)}
    if not isinstance(state, RelevancyState):
        groups["state"] = (state, ("s0", "c0")[:states])
    for name, (group, wanted) in groups.items():
        check_group(OP, name, group, wanted, u, f" of the cell {cell!r}")

    hidden = u.shape[-1] // gates
    if u.shape[-1] % gates or hidden == 0:
        raise ValueError(
            f"{OP}: the last size of `u` must be G*H, a positive multiple of G = {gates} for the cell {cell!r}, got "
            f"{tuple(u.shape)}"
        )
    size, S = (2 * hidden, "2H") if combine == "concat" else (hidden, "H")
    check_shape(OP, "R", R, f"(G*H, {S})", (gates * hidden, size))
    W_a, U_a, v = attention_weights
    check_shape(OP, "attention_weights[0]", W_a, f"W_a, (H, {S})", (hidden, size))
    check_shape(OP, "attention_weights[1]", U_a, "U_a, (H, H)", (hidden, hidden))
    if v.dim() != 2 or v.shape[0] < 1 or v.numel() != hidden:
        check_shape(OP, "attention_weights[2]", v, "v, (H,) or (N, H/N)", (hidden,))
    for k, name in enumerate(names):
        check_shape(OP, f"params[{k}]", params[k], f"{name}, (H,)", (hidden,))
    s0 = state[0]
    batch = u.shape[1] if batch_sizes is None else s0.shape[0] if isinstance(s0, Tensor) and s0.dim() == 2 else 0
    steps = check_steps(OP, u, batch, batch_sizes, reset)
    if isinstance(state, RelevancyState):
        _check_state(state, u, states, batch, hidden, size, buffer_size, relevant_size)
    else:
        for k, tensor in enumerate(state):
            wanted = (batch, hidden) if k else (batch, size)
            check_shape(OP, f"state[{k}]", tensor, "(B, H)" if k else f"(B, {S})", wanted)
    if isinstance(relevance, Tensor):
        check_like(OP, "relevance", relevance, "u", u)
        check_shape(OP, "relevance", relevance, "(T, B)", (steps, batch))
    return steps


def _check_state(state, u, states, batch, hidden, size, buffer_size, relevant_size) -> None:
    if (state.c is None) != (states == 1):
        raise ValueError(f"{OP}: `state.c` must {'be None' if states == 1 else 'be a tensor'} for this cell")
    like = u.new_empty(0, dtype=torch.promote_types(u.dtype, torch.float32))
    slots = state.buffer.shape[1] if isinstance(state.buffer, Tensor) and state.buffer.dim() == 3 else 0
    if slots > buffer_size:
        raise ValueError(f"{OP}: `state.buffer` has {slots} slots, more than `buffer_size` = {buffer_size}")
    number = torch.empty(0, dtype=torch.int64, device=u.device)
    wanted = {
        "s": ("(B, 2H)" if size > hidden else "(B, H)", (batch, size)), "c": ("(B, H)", (batch, hidden)),
        "buffer": ("(B, L, H)", (batch, slots, hidden)), "buffer_scores": ("(B, L)", (batch, slots)),
        "buffer_ids": ("(B, L)", (batch, slots)),
        "relevant": ("(B, relevant_size, H)", (batch, relevant_size, hidden)),
        "scores": ("(B, relevant_size)", (batch, relevant_size)), "ids": ("(B, relevant_size)", (batch, relevant_size)),
        "time": ("(B,)", (batch,)),
    }  # fmt: skip
    for name, (symbols, sizes) in wanted.items():
        tensor = getattr(state, name)
        if name == "c" and tensor is None:
            continue
        integer = name in ("buffer_ids", "ids", "time")
        check_like(OP, f"state.{name}", tensor, "an index" if integer else "u", number if integer else like)
        check_shape(OP, f"state.{name}", tensor, symbols, sizes)


def missing_on_cuda(attention_weights: Sequence[Tensor], combine: str, relevance: str | Tensor) -> str | None:
    """Why the CUDA kernels cannot serve a call, if so."""
    missing = {
        'combine="concat"': combine == "concat",
        "several heads": attention_weights[2].dim() == 2,
        "gradients of `relevance`": isinstance(relevance, Tensor) and relevance.requires_grad,
    }
    return next((f"the kernel does not have {name}" for name, asked in missing.items() if asked), None)


def _choose(u: Tensor, attention_weights: Sequence[Tensor], combine: str, relevance: str | Tensor) -> Choice:
    why = missing_on_cuda(attention_weights, combine, relevance)
    return choose(OP, {"cuda": cuda_refusal(u, why), "cpu": cpu_refusal(u)})


def _explain(cell, u, state, attention_weights, buffer_size, relevant_size, combine, relevance, batch_sizes) -> Choice:
    steps = u.shape[0] if batch_sizes is None else batch_sizes.shape[0]
    sizes = (steps, state[0].shape[0], attention_weights[1].shape[0], buffer_size, relevant_size)
    return told(
        _choose(u, attention_weights, combine, relevance), u.device, u.dtype,
        lambda dtype, facts, _: torch.ops.rnnkern.relevancy_plan(cell, dtype, sizes, facts),
        lambda plan: f"{plan['forward']}, backward {plan['backward']}, for {plan['reason']}",
    )  # fmt: skip


@operator(_check, _explain)
def relevancy_recurrence(
    cell: str,
    u: Tensor,
    R: Tensor,
    state: Sequence[Tensor] | RelevancyState,
    attention_weights: Sequence[Tensor],
    *,
    buffer_size: int,
    relevant_size: int,
    combine: str = "half",
    alignment: str = "additive",
    relevance: str | Tensor = "attention",
    params: Sequence[Tensor] = (),
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    output: str = "h",
    return_memory: bool = False,
) -> tuple[Tensor, RelevancyState] | tuple[Tensor, RelevancyState, RelevancyMemory]:
    r"""Runs a recurrence whose state attends to the last states and to the most relevant earlier ones (Kerg 2022, ch.
    4, algorithm 1: RelRNN and RelLSTM, or MemRNN if the buffer holds all states).

    At step t, for each sample, the cell computes :math:`h_t` from :math:`u_t + R s_{t-1}`. The state :math:`h_t` (an
    event) enters the buffer, and the event that has been in the buffer for ``buffer_size`` steps leaves it. The leaving
    event takes an empty slot of the relevant set; if none is empty, it replaces the event with the least score (the
    first of equal ones) if its own score is greater; otherwise it is forgotten. Then

    .. math::
        e_j = v \cdot \tanh(W_a s_{t-1} + U_a m_j), \quad \alpha = \mathrm{softmax}(e), \quad
        s_t = (h_t + \sum_j \alpha_j m_j) / 2

    where :math:`m_j` are the events in the buffer and in the relevant set. The score of each event in the buffer then
    increases by its :math:`\alpha_j`. No gradient flows through the selection, and none through these scores. T is the
    number of time steps, B the batch size, H the hidden size and G the number of gates of the cell.

    Args:
        cell: ``"tanh"``, ``"relu"``, ``"modrelu"`` (G = 1) or ``"lstm"`` (G = 4; attention reads h, not c).
        u: (T, B, G*H), or packed (sum of ``batch_sizes``, G*H); float32 or float64, or bfloat16 or float16, which are
            computed in float32, with a float32 state.
        R: (G*H, H), called V in the thesis; (G*H, 2H) with ``combine="concat"``.
        state: ``(s0,)``, or for an LSTM ``(s0, c0)``, each (B, H), to start with an empty memory; or the state that an
            earlier call returned. The two calls then give bit for bit the result of one call. s0 is (B, 2H) with
            ``combine="concat"``.
        attention_weights: ``(W_a, U_a, v)``: (H, H), or (H, 2H) with ``combine="concat"``; (H, H); (H,). If v is (N,
            H/N), there are N heads: head n computes e, a softmax and the sum over events from the n-th part of the
            units of queries, keys and events, and the N sums are concatenated. An event's score then increases by the
            mean of its alpha over the heads.
        buffer_size: number of slots in the buffer, at least 1. With T or more slots no event leaves, which gives full
            attention with memory linear in T.
        relevant_size: number of slots in the relevant set; with 0, attention is limited to the buffer.
        combine: ``"half"`` as above, or ``"sum"`` for :math:`s_t = h_t + \sum_j \alpha_j m_j` as in the thesis, which
            does not generalize to longer sequences than those in training; or ``"concat"`` for :math:`s_t = [h_t,
            \sum_j \alpha_j m_j]`, (B, 2H).
        alignment: ``"additive"`` as above, or ``"dot"``: :math:`e_j = v \cdot (W_a s_{t-1} \odot U_a m_j)`.
        relevance: the scores of events. ``"attention"`` sums the attention they receive in the buffer, as above;
            ``"random"`` draws scores from torch's generator; ``"fifo"`` keeps the events that left the buffer last; a
            tensor (T, B) gives your own scores. Its gradient is a straight-through estimate, that of adding to every
            e_j the score of event j: it says which events should be attended to more, or less. It counts the steps of
            this call only.
        params: for ``"modrelu"`` the tuple ``(b,)`` with its bias (H,).
        batch_sizes: as in :func:`rnnkern.ops.recurrence`.
        reset: bool mask of shape (T, B), also for packed input. True zeroes s and c and empties the memory before step
            t.
        output: ``"h"``, or ``"s"`` to return :math:`s_t` instead, with 2H columns if ``combine`` is "concat".
        return_memory: if True, also returns what each step attended to.

    Returns:
        h, shaped like ``u`` with H columns; the final :class:`RelevancyState`, whose ``ids`` (B, ``relevant_size``) are
        the time indices of the events in the relevant set, -1 for an empty slot, and whose ``scores`` are their final
        scores; and with ``return_memory`` a named tuple of ``weights`` and int64 ``ids``, both (T, B, K), or packed,
        over the K slots of the buffer and then of the relevant set: alpha, averaged over the heads, 0 for an empty
        slot, and the event in the slot, -1 for none. Gradients flow from h and from the state's ``s``, ``c``,
        ``buffer`` and ``relevant`` to ``u``, ``R``, ``attention_weights``, ``params``, ``relevance`` and the same parts
        of ``state``. On CUDA, ``combine="concat"``, several heads and the gradient of ``relevance`` have no kernel; the
        reference runs instead.

    Raises:
        ValueError: a shape or an option is wrong, or :func:`rnnkern.use` forces an implementation that cannot run the
            call.
        TypeError: an argument has the wrong type, dtype or device.

    See also: :func:`rnnkern.reference.relevancy_recurrence`, the same equations in plain PyTorch.

    >>> u, R, W_a, U_a = (torch.randn(*sizes) for sizes in ((9, 2, 3), (3, 3), (3, 3), (3, 3)))
    >>> attention, sizes = (W_a, U_a, torch.randn(3)), {"buffer_size": 4, "relevant_size": 2}
    >>> h, state = relevancy_recurrence("tanh", u, R, (torch.zeros(2, 3),), attention, relevance="fifo", **sizes)
    >>> h.shape, state.ids.tolist()
    (torch.Size([9, 2, 3]), [[4, 3], [4, 3]])
    """
    steps = _check(cell, u, R, state, attention_weights, buffer_size, relevant_size, combine, alignment, relevance,
                   params, batch_sizes, reset, output, return_memory)  # fmt: skip
    arithmetic = torch.promote_types(u.dtype, torch.float32)
    dtype, u = u.dtype, u.to(arithmetic)
    R, *attention_weights = (x.to(arithmetic) for x in (R, *attention_weights))
    params = [x.to(arithmetic) for x in params]
    if not isinstance(state, RelevancyState):
        hidden = attention_weights[1].shape[0]
        state = reference.empty_state([x.to(arithmetic) for x in state], relevant_size, hidden)
    scores = reference.given_scores(relevance, state, steps)
    scores = None if scores is None else scores.to(arithmetic)
    if _choose(u, attention_weights, combine, relevance).implementation == "reference":
        h, *rest = reference.relevancy_recurrence(
            cell, u, R, state, attention_weights, buffer_size=buffer_size, relevant_size=relevant_size, combine=combine,
            alignment=alignment, relevance="attention" if scores is None else scores, params=params,
            batch_sizes=batch_sizes, reset=reset, output=output, return_memory=return_memory,
        )  # fmt: skip
        return h.to(dtype), *rest
    passed_on, others = parted([x for x in state if x is not None])
    _, h, s, last_s, buffer, relevant, c, *rest = by_operator(
        cell, u, [R, *attention_weights], passed_on, others, params, batch_sizes, reset, scores, buffer_size,
        FACTORS[combine], alignment == "dot", name_of(dtype), return_memory,
    )  # fmt: skip
    last = RelevancyState(last_s, None if state.c is None else c, buffer, *rest[:2], relevant, *rest[2:5])
    out = (h if output == "h" else s).to(dtype)
    return (out, last, RelevancyMemory(*rest[5:7])) if return_memory else (out, last)
