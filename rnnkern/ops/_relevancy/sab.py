"""Sparse attentive backtracking: the public function, its checks, its choice of implementation and its derivatives."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern.ops.checks import check_choice, check_flags, check_group, check_input, check_like, check_shape, check_steps
from rnnkern.ops.differentiable import check_lengths_are_there, differentiable
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, operator
from rnnkern.ops.folds import one_by_one
from rnnkern.reference import SABMemory, SABState

OP = "sab_recurrence"
ALIGNMENTS = {"separable": ("w",), "mlp": ("W", "w")}
"""The alignments, with the names of their weights."""


def _check(u, R, state, attention_weights, top_k, attend_every, truncation, alignment, bias, batch_sizes,
           reset, return_memory) -> None:  # fmt: skip
    check_input(OP, "u", u, batch_sizes, "4*H")
    check_flags(OP, return_memory=return_memory)
    check_choice(OP, "alignment", alignment, tuple(ALIGNMENTS))
    for name, number in (("top_k", top_k), ("attend_every", attend_every), ("truncation", truncation)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{OP}: `{name}` must be a positive integer, got {number!r}")
    groups = {"attention_weights": (attention_weights, ALIGNMENTS[alignment])}
    if not isinstance(state, SABState):
        groups["state"] = (state, ("h0", "c0"))
    for name, (group, wanted) in groups.items():
        check_group(OP, name, group, wanted, u)
    for name, tensor in (("R", R), ("bias", bias)):
        if tensor is not None or name == "R":
            check_like(OP, name, tensor, "u", u)

    hidden = u.shape[-1] // 4
    if u.shape[-1] % 4 or hidden == 0:
        raise ValueError(f"{OP}: the last size of `u` must be 4*H, a positive multiple of 4, got {tuple(u.shape)}")
    check_shape(OP, "R", R, "(4*H, H)", (4 * hidden, hidden))
    if bias is not None:
        check_shape(OP, "bias", bias, "(4*H,)", (4 * hidden,))
    *W, w = attention_weights
    if W:
        width = w.shape[0] if w.dim() == 1 else 0
        check_shape(OP, "attention_weights[0]", W[0], "W, (d, 2*H)", (width, 2 * hidden))
    width, symbols = (W[0].shape[0], "w, (d,)") if W else (2 * hidden, "w, (2*H,)")
    check_shape(OP, f"attention_weights[{len(W)}]", w, symbols, (width,))
    h0 = state[0]
    batch = u.shape[1] if batch_sizes is None else h0.shape[0] if isinstance(h0, Tensor) and h0.dim() == 2 else 0
    check_steps(OP, u, batch, batch_sizes, reset)
    if isinstance(state, SABState):
        _check_state(state, u, batch, hidden, attend_every)
    else:
        for k, tensor in enumerate(state):
            check_shape(OP, f"state[{k}]", tensor, "(B, H)", (batch, hidden))


def _check_state(state: SABState, u: Tensor, batch: int, hidden: int, attend_every: int) -> None:
    like = u.new_empty(0, dtype=torch.promote_types(u.dtype, torch.float32))
    slots = 1 + state.steps // attend_every
    wanted = {
        "h": ("(B, H)", (batch, hidden)), "c": ("(B, H)", (batch, hidden)),
        "memory": ("(B, 1 + steps // attend_every, H)", (batch, slots, hidden)),
    }  # fmt: skip
    for name, (symbols, sizes) in wanted.items():
        check_like(OP, f"state.{name}", getattr(state, name), "u", like)
        check_shape(OP, f"state.{name}", getattr(state, name), symbols, sizes)
    check_like(OP, "state.time", state.time, "an index", torch.empty(0, dtype=torch.int64, device=u.device))
    check_shape(OP, "state.time", state.time, "(B,)", (batch,))


def _choose(u: Tensor) -> Choice:
    return choose(OP, {"cpu": cpu_refusal(u)})


@operator(_check, _choose)
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
    r"""Runs an LSTM with sparse attentive backtracking, which attends to at most k = ``top_k`` of its stored past
    states at each step (Ke et al. 2018, algorithm 1, with the attention weights of the published code).

    The memory M of a sample starts with its initial h. At step t, an LSTM step computes :math:`\tilde h_t` and the cell
    state from :math:`u_t + R h_{t-1} + b`, and each memory receives a score :math:`e_j`. While M has at most k members,
    their scores are used as weights. Once M is larger, :math:`\delta` is the k-th largest score plus 1e-7, and

    .. math::
        w_j = \mathrm{relu}(e_j - \delta) / (\sum_i \mathrm{relu}(e_i - \delta) + 10^{-7}), \quad
        a_t = \sum_j w_j m_j, \quad h_t = \tilde h_t + a_t

    so at most k - 1 weights are nonzero. Of equal scores, that of the older memory counts as larger. :math:`h_t` is
    passed to the next step, and every ``attend_every``-th :math:`h_t` is added to M. T is the number of time steps, B
    the batch size and H the hidden size.

    Args:
        u: (T, B, 4*H), or packed (sum of ``batch_sizes``, 4*H), gates in PyTorch's order; float32 or float64, or
            bfloat16 or float16, which are computed in float32, with a float32 state.
        R: (4*H, H).
        state: ``(h0, c0)``, each (B, H), to start a sequence; or the :class:`SABState` that an earlier call returned.
            The two calls then give bit for bit the result of one call.
        attention_weights: for ``"separable"``, ``(w,)`` with w (2*H,); for ``"mlp"``, ``(W, w)`` with W (d, 2*H) and w
            (d,), for any d. The first H columns apply to :math:`\tilde h_t`, the others to the memory.
        top_k: k, at least 1.
        attend_every: h of a sample is added to M at every step of its sequence, counted from 1, that is a multiple of
            this.
        truncation: the gradient through h and c is cut before every step that is a multiple of this. The gradient
            through M is never cut.
        alignment: ``"separable"``, :math:`e_j = w \cdot \tanh([\tilde h_t; m_j])`, as in the published code (its
            weights do not depend on :math:`\tilde h_t` once there are more than k memories); or ``"mlp"``, :math:`e_j =
            w \cdot \tanh(W [\tilde h_t; m_j])`, an MLP of both as in the paper.
        bias: (4*H,).
        batch_sizes: as in :func:`rnnkern.ops.recurrence`.
        reset: bool mask of shape (T, B), also for packed input. True starts a new sequence at step t: h and c are zero,
            M contains only that h, and the count of steps restarts.
        return_memory: if True, also returns what each step attended to.

    Returns:
        :math:`[h_t; a_t]`, shaped like ``u`` with 2*H columns, where :math:`a_t` is the attention context; the final
        :class:`SABState`; and with ``return_memory`` a named tuple of the ``weights`` (T, B, k), or packed, largest
        score first once there are more than k memories, 0 for none, and the int32 ``slots`` of their memories, shaped
        alike, -1 for none. Gradients flow from the first result and from the state's ``h``, ``c`` and ``memory`` to
        ``u``, ``R``, ``bias``, ``attention_weights`` and the same parts of ``state``.

    Raises:
        ValueError: a shape or an option is wrong, or :func:`rnnkern.use` forces an implementation that cannot run the
            call.
        TypeError: an argument has the wrong type, dtype or device.
        NotImplementedError: forward-mode AD (``torch.func.jvp``) is not supported, nor is a second derivative of packed
            input under ``torch.compile``.

    See also: :func:`rnnkern.reference.sab_recurrence`, the same equations in plain PyTorch.

    >>> u, R, w, h0 = torch.randn(9, 2, 12), torch.randn(12, 3), torch.randn(6), torch.zeros(2, 3)
    >>> out, state = sab_recurrence(u, R, (h0, h0), (w,), top_k=2, attend_every=3, truncation=5)
    >>> out.shape, state.memory.shape, state.time.tolist()
    (torch.Size([9, 2, 6]), torch.Size([2, 4, 3]), [9, 9])
    """
    _check(u, R, state, attention_weights, top_k, attend_every, truncation, alignment, bias, batch_sizes, reset,
           return_memory)  # fmt: skip
    arithmetic = torch.promote_types(u.dtype, torch.float32)
    dtype, u, R = u.dtype, u.to(arithmetic), R.to(arithmetic)
    attention_weights = [x.to(arithmetic) for x in attention_weights]
    bias = None if bias is None else bias.to(arithmetic)
    if not isinstance(state, SABState):
        state = reference.begin_sab(*(x.to(arithmetic) for x in state))
    options = {"top_k": top_k, "attend_every": attend_every, "truncation": truncation}
    if _choose(u).implementation == "reference":
        out, end, memory = reference.sab_recurrence(
            u, R, state, attention_weights, **options, alignment=alignment, bias=bias, batch_sizes=batch_sizes,
            reset=reset, return_memory=True,
        )  # fmt: skip
    else:
        *before, steps = state
        out, h, c, memory, time, *attended = _sab_recurrence(
            u, R, bias, attention_weights, before, batch_sizes, reset, steps, *options.values()
        )[:7]
        steps += u.shape[0] if batch_sizes is None else batch_sizes.shape[0]
        end, memory = SABState(h, c, memory, time, steps), SABMemory(*attended)
    out = out.to(dtype)
    return (out, end, memory) if return_memory else (out, end)


# ---- derivatives with respect to (u, R, bias, [attention], [h, c, memory, time], batch_sizes, reset, steps, top_k,
# attend_every, truncation), where steps counts those of earlier calls


def _backward_arguments(grads, saved, needs):
    """Passes either no gradient of the state or all three."""
    *args, out, kept = saved
    grad_out, *grad_state = grads
    if all(g is None for g in grad_state):
        return grad_out, [], *args, out, kept
    u, _, _, _, (h, c, memory, _), batch_sizes, _, steps, _, attend_every, _ = args
    slots = 1 + (steps + (u.shape[0] if batch_sizes is None else batch_sizes.shape[0])) // attend_every
    shapes = (h.shape, c.shape, (memory.shape[0], slots, memory.shape[2]))
    grad_state = [u.new_zeros(shape) if g is None else g for g, shape in zip(grad_state, shapes, strict=True)]
    return grad_out, grad_state, *args, out, kept


def _reference_backward(
    grad_out, grad_state, u, R, bias, attention, state, batch_sizes, reset, steps, top_k, attend_every, truncation, out,
    kept,
):  # fmt: skip
    check_lengths_are_there(OP, batch_sizes)
    *state, time = state

    def forward(u, R, bias, attention, state):
        out, (h, c, memory, *_) = reference.sab_recurrence(
            u, R, SABState(*state, time, steps), attention, top_k=top_k, attend_every=attend_every,
            truncation=truncation, alignment="mlp" if len(attention) > 1 else "separable",
            bias=bias if bias.numel() else None, batch_sizes=batch_sizes, reset=reset,
        )  # fmt: skip
        return out, [h, c, memory]

    bias = u.new_empty(0) if bias is None else bias
    (out, last), pull = torch.func.vjp(forward, u, R, bias, attention, state)
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    du, dR, dbias, dattention, dstate = pull((grad_out, grad_state or [torch.zeros_like(x) for x in last]))
    return du, dR, dbias, *dattention, *dstate


def _shapes(u, R, bias, attention, state, batch_sizes, reset, steps, top_k, attend_every, truncation, training):
    h, c, memory, time = state
    steps = steps + (u.shape[0] if batch_sizes is None else batch_sizes.shape[0])
    rows, hidden = u.shape[:-1], h.shape[1]
    results = [
        u.new_empty(*rows, 2 * hidden), h.new_empty(h.shape), c.new_empty(c.shape),
        memory.new_empty(memory.shape[0], 1 + steps // attend_every, hidden), time.new_empty(time.shape),
        u.new_empty(*rows, top_k), u.new_empty(*rows, top_k, dtype=torch.int32),
    ]  # fmt: skip
    return [*results, u.new_empty(rows), u.new_empty(*rows, hidden)] if training else results


def _backward_shapes(grad_out, grad_state, u, R, bias, attention, state, *rest):
    like = (u, R, u.new_empty(0) if bias is None else bias, *attention, *state[:3])
    return [x.new_empty(x.shape) for x in like]


_sab_recurrence = differentiable(
    "sab_recurrence",
    forward=lambda training, *args: torch.ops.rnnkern.sab_recurrence.default(*args, training),
    results=4,
    saves=lambda args, outputs: (*args, outputs[0], list(outputs[5:])),
    kept=(0,),
    gradients=range(5),
    reference_backward=_reference_backward,
    backward_arguments=_backward_arguments,
    leaves=range(7),
    fold=one_by_one,
    shapes=_shapes,
    backward_shapes=_backward_shapes,
)
