"""Derivatives of sparse attentive backtracking: an autograd.Function around the forward, one around the backward, and
the reference around that."""

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern._torch_private import is_fake
from rnnkern.ops.transforms import applied, needs_derivatives, no_forward_mode, transformed
from rnnkern.reference import SABState

_operators = torch.ops.rnnkern


def sab_recurrence(options, u, R, bias, attention, state, batch_sizes, reset) -> list[Tensor]:
    """Of float32 or float64, by the kernels of a CPU.

    Args:
        options: (steps, top_k, attend_every, truncation), ``steps`` those of former calls.
        state: (h, c, memory, time).

    Returns:
        [out, h, c, memory, time, weights, slots].
    """
    if not needs_derivatives(u, R, bias, *attention, *state[:3]):
        return _operators.sab_recurrence.default(u, R, bias, attention, state, batch_sizes, reset, *options, False)
    args = [u, R, bias, batch_sizes, reset, *attention, *state]
    return list(_apply(options, *args)[:7])


def _over_members(function, info, dims, args):
    """Each member of torch.vmap is a call."""
    results = [
        function(args[0], *(x if dim is None else x.select(dim, n) for x, dim in zip(args[1:], dims[1:], strict=True)))
        for n in range(info.batch_size)
    ]
    stacked = tuple(map(torch.stack, zip(*results, strict=True)))
    return stacked, (0,) * len(stacked)


class SABRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(options, u, R, bias, batch_sizes, reset, *tensors):
        attention, state = tensors[:-4], tensors[-4:]
        return tuple(
            _operators.sab_recurrence.default(u, R, bias, attention, state, batch_sizes, reset, *options, True)
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.options, *tensors = inputs
        out, _, _, _, *rest = output
        ctx.mark_non_differentiable(*rest)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, out, *rest[1:])

    @staticmethod
    def backward(ctx, *grads):
        grads = grads[:4]
        if all(g is None for g in grads):
            return (None,) * (len(ctx.saved_tensors) - 4)  # of options too
        function = SABRecurrenceBackward.apply if transformed() else SABRecurrenceBackward.forward
        du, dR, dbias, *rest = function(ctx.options, *ctx.saved_tensors, *grads)
        return None, du, dR, dbias if ctx.needs_input_grad[3] else None, None, None, *rest, None

    @staticmethod
    def vmap(info, dims, *args):
        return _over_members(SABRecurrence.apply, info, dims, args)


_apply = applied(SABRecurrence, "sab_recurrence")


class SABRecurrenceBackward(torch.autograd.Function):
    """The backward for torch.func's transforms, which do not take the operator's register_autograd."""

    @staticmethod
    def forward(options, u, R, bias, batch_sizes, reset, *tensors):
        attention, state, out, saved, (grad_out, *grad_state) = _parts(tensors)
        if all(g is None for g in grad_state):
            grad_state = []
        elif any(g is None for g in grad_state):
            steps, _, every, _ = options
            slots = 1 + (steps + (len(u) if batch_sizes is None else len(batch_sizes))) // every
            like = (*state[:2], (state[2].shape[0], slots, state[2].shape[2]))
            grad_state = [
                u.new_zeros(getattr(x, "shape", x)) if g is None else g for g, x in zip(grad_state, like, strict=True)
            ]
        return tuple(
            _operators.sab_recurrence_backward.default(
                grad_out, grad_state, u, R, bias, attention, state, batch_sizes, reset, *options, out, saved
            )
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.options, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, *grads):
        leaves, upstream = _differentiate_backward(ctx.options, ctx.saved_tensors, grads)
        u, R, bias, *rest = leaves
        return None, u, R, bias, None, None, *rest, *[None] * 6, *upstream

    @staticmethod
    def vmap(info, dims, *args):
        return _over_members(SABRecurrenceBackward.apply, info, dims, args)

    jvp = no_forward_mode("sab_recurrence")


def _parts(tensors):
    """(attention, state, out, saved, the gradients of out and of the state's first three)."""
    first = len(tensors) - 13
    return tensors[:first], tensors[first : first + 4], tensors[-9], tensors[-8:-4], tensors[-4:]


def _differentiate_backward(options, tensors, grads):
    """The vector-Jacobian product of the backward, which is the reference's gradient: of (u, R, bias, *attention, h, c,
    memory), and of the upstream gradients."""
    u, R, bias, batch_sizes, reset, *rest = tensors
    if batch_sizes is not None and is_fake(batch_sizes):
        raise NotImplementedError(
            "sab_recurrence: second derivatives of packed input cannot be traced by the compiler, since they read the "
            "lengths; call outside torch.compile, or pad and mask"
        )
    attention, (*state, time), _, _, upstream = _parts(rest)
    steps, top_k, attend_every, truncation = options
    leaves = {"u": u, "R": R, "bias": bias, **{f"attention{k}": w for k, w in enumerate(attention)}}
    leaves |= dict(zip("hcm", state, strict=True))
    given = {k: g for k, g in enumerate(upstream) if g is not None}
    asked = {name: g for (name, x), g in zip(leaves.items(), grads, strict=True) if g is not None and x is not None}
    names, leaves = list(leaves), {name: x for name, x in leaves.items() if x is not None}
    if not asked:
        return [None] * len(names), [None] * 4

    def forward(leaves):
        before = SABState(*(leaves[s] for s in "hcm"), time, steps)
        out, after = reference.sab_recurrence(
            leaves["u"], leaves["R"], before, [leaves[f"attention{k}"] for k in range(len(attention))], top_k=top_k,
            attend_every=attend_every, truncation=truncation, alignment="mlp" if len(attention) > 1 else "separable",
            bias=leaves.get("bias"), batch_sizes=batch_sizes, reset=reset,
        )  # fmt: skip
        return {k: y for k, y in enumerate((out, *after[:3])) if k in given}

    def backward(leaves, given):
        gradients = torch.func.vjp(forward, leaves)[1](given)[0]
        return {name: gradients[name] for name in asked}

    of_leaves, of_given = torch.func.vjp(backward, leaves, given)[1](asked)
    return [of_leaves.get(name) for name in names], [of_given.get(k) for k in range(4)]


def _forward_shapes(u, R, bias, attention, state, batch_sizes, reset, steps, top_k, attend_every, truncation, training):
    h, c, memory, time = state
    steps = steps + (u.shape[0] if batch_sizes is None else batch_sizes.shape[0])
    rows, hidden = u.shape[:-1], h.shape[1]
    results = [
        u.new_empty(*rows, 2 * hidden), h.new_empty(h.shape), c.new_empty(c.shape),
        memory.new_empty(memory.shape[0], 1 + steps // attend_every, hidden), time.new_empty(time.shape),
        u.new_empty(*rows, top_k), u.new_empty(*rows, top_k, dtype=torch.int32),
    ]  # fmt: skip
    return [*results, u.new_empty(rows), u.new_empty(*rows, hidden)] if training else results


def _backward_shapes(grad_out, grad_state, u, R, bias, attention, state, batch_sizes, reset, steps, top_k, attend_every,
                     truncation, out, saved):  # fmt: skip
    dbias = u.new_empty(0 if bias is None else bias.shape[0])
    return [x.new_empty(x.shape) for x in (u, R)] + [dbias] + [x.new_empty(x.shape) for x in (*attention, *state[:3])]


def _setup_backward(ctx, inputs, output):
    """As in :class:`SABRecurrenceBackward`, whose arguments the operator's are in another order."""
    grad_out, grad_state, u, R, bias, attention, state, batch_sizes, reset, *options, out, saved = inputs
    ctx.lists = [len(grad_state), len(attention)]
    tensors = (u, R, bias, batch_sizes, reset, *attention, *state, out, *saved, grad_out, *(grad_state or [None] * 3))
    SABRecurrenceBackward.setup_context(ctx, (options, *tensors), output)


def _differentiate(ctx, grads):
    (u, R, bias, *rest), (grad_out, *grad_state) = _differentiate_backward(ctx.options, ctx.saved_tensors, grads)
    given, weights = ctx.lists
    return (
        grad_out, grad_state[:given], u, R, bias, rest[:weights], [*rest[weights:], None], *[None] * 7, [None] * 4,
    )  # fmt: skip


if _extension.available:
    torch.library.register_fake("rnnkern::sab_recurrence", _forward_shapes)
    torch.library.register_fake("rnnkern::sab_recurrence_backward", _backward_shapes)
    torch.library.register_autograd("rnnkern::sab_recurrence_backward", _differentiate, setup_context=_setup_backward)
