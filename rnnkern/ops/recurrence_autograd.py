"""Derivatives of the recurrence: an autograd.Function around the forward, and the reference around the backward."""

import inspect
import json

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rnnkern import _extension, reference
from rnnkern.reference import CELLS

KERNEL_CELLS: dict[str, dict[str, int]] = (
    json.loads(torch.ops.rnnkern.recurrence_cells()) if _extension.available else {}
)
"""The facts of the cells that have a kernel on a CPU (csrc/cells/list.h)."""

CUDA_CELLS = [cell for cell, facts in KERNEL_CELLS.items() if facts["cuda"]]
"""Those that have one on a GPU too."""

_operators = torch.ops.rnnkern


def needs_derivatives(*tensors: Tensor | None) -> bool:
    """Forward mode counts: the autograd.Function refuses it, the plain operator would return zero tangents."""
    backward = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return backward or forward_ad._current_level >= 0


class Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(cell, reverse, save_gates, states, u, weight_ih, bias_ih, R, bias, batch_sizes, reset, grad_scale,
                *tensors):  # fmt: skip
        state, params = tensors[:states], tensors[states:]
        return tuple(
            _operators.recurrence.default(
                cell, u, R, state, bias, params, batch_sizes, reset, reverse, True, save_gates, weight_ih, bias_ih
            )
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.cell, ctx.reverse, _, ctx.states, *tensors = inputs
        h, saved = output[0], output[1 + ctx.states :]
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)
        ctx.inputs = len(tensors)
        ctx.save_for_backward(*tensors, h, *saved)

    @staticmethod
    def backward(ctx, grad_h, *grad_rest):
        tensors = ctx.saved_tensors
        u, weight_ih, bias_ih, R, bias, batch_sizes, reset, grad_scale, *rest = tensors[: ctx.inputs]
        h, *saved = tensors[ctx.inputs :]
        state, params = rest[: ctx.states], rest[ctx.states :]
        grad_state = grad_rest[: ctx.states]
        if all(g is None for g in grad_state):
            grad_state = []
            if grad_h is None:
                return (None,) * (4 + ctx.inputs)
        else:
            grad_state = [torch.zeros_like(s) if g is None else g for g, s in zip(grad_state, state, strict=True)]
        needs_u, needs_weight_ih, needs_bias_ih, needs_R, needs_bias = ctx.needs_input_grad[4:9]
        du, dR, dbias, *d_rest = _operators.recurrence_backward.default(
            ctx.cell, grad_h, grad_state, u, R, state, bias, params, batch_sizes, reset, ctx.reverse, grad_scale, h,
            saved, needs_R, needs_bias, weight_ih, bias_ih, needs_u, needs_weight_ih, needs_bias_ih,
        )  # fmt: skip
        dweight_ih = dbias_ih = None
        if weight_ih is not None:
            *d_rest, dweight_ih, dbias_ih = d_rest
        first = (du, dweight_ih, dbias_ih, dR, dbias)
        wanted = (d if needed else None for d, needed in zip(first, ctx.needs_input_grad[4:9], strict=True))
        return (None, None, None, None, *wanted, None, None, None, *d_rest)


# Function.apply binds its arguments by the signature, and would work that out at every call: 30 us of a tiny one's 220.
Recurrence.forward.__signature__ = inspect.signature(Recurrence.forward)


def _hidden_size(cell, u, weight_ih):
    return (u.shape[-1] if weight_ih is None else weight_ih.shape[0]) // CELLS[cell].gates


def _forward_shapes(cell, u, R, state, bias, params, batch_sizes, reset, reverse, training, save_gates,
                    weight_ih=None, bias_ih=None):  # fmt: skip
    hidden = _hidden_size(cell, u, weight_ih)
    outputs = [u.new_empty(*u.shape[:-1], state[0].shape[1]), *(s.new_empty(s.shape) for s in state)]
    if training:
        arithmetic = torch.promote_types(u.dtype, torch.float32)
        outputs += [u.new_empty(*u.shape[:-1], hidden, dtype=arithmetic) for _ in state[1:]]
        if save_gates and KERNEL_CELLS[cell]["saved"]:
            outputs.append(u.new_empty(*u.shape[:-1], KERNEL_CELLS[cell]["saved"] * hidden, dtype=arithmetic))
    return outputs


def _backward_shapes(cell, grad_h, grad_state, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, h,
                     saved, needs_R, needs_bias, weight_ih, bias_ih, needs_u, needs_weight_ih,
                     needs_bias_ih):  # fmt: skip
    columns = CELLS[cell].gates * _hidden_size(cell, u, weight_ih)
    outputs = [
        u.new_empty(u.shape if weight_ih is None or needs_u else (0,)),
        R.new_empty(R.shape if needs_R else (0,)),
        u.new_empty(columns if needs_bias else 0),
        *(x.new_empty(x.shape) for x in (*state, *params)),
    ]
    if weight_ih is not None:
        outputs.append(u.new_empty(weight_ih.shape if needs_weight_ih else (0,)))
        outputs.append(u.new_empty(columns if bias_ih is not None and needs_bias_ih else 0))
    return outputs


def _setup_backward(ctx, inputs, output):
    (ctx.cell, grad_h, grad_state, u, R, state, bias, params, batch_sizes, reset, ctx.reverse, grad_scale, _, saved,
     ctx.needs_R, ctx.needs_bias, weight_ih, bias_ih, ctx.needs_u, ctx.needs_weight_ih,
     ctx.needs_bias_ih) = inputs  # fmt: skip
    ctx.grad_states, ctx.states, ctx.saved = len(grad_state), len(state), len(saved)
    ctx.save_for_backward(
        grad_h, u, R, bias, weight_ih, bias_ih, batch_sizes, reset, grad_scale, *grad_state, *state, *params
    )


def _differentiate_backward(ctx, grads):
    """Second derivatives: the backward is the reference's gradient, so its gradient is the reference's second one."""
    grad_h, u, R, bias, weight_ih, bias_ih, batch_sizes, reset, grad_scale, *rest = ctx.saved_tensors
    # Aliases stand between the graph that leads here and the one built below; orders above two go through them.
    alias = lambda x: None if x is None else (x.view_as(x) if x.requires_grad else x.detach().requires_grad_())  # noqa: E731
    with torch.enable_grad():
        grad_h, u, R, bias, weight_ih, bias_ih, *rest = map(alias, (grad_h, u, R, bias, weight_ih, bias_ih, *rest))
        grad_state, rest = rest[: ctx.grad_states], rest[ctx.grad_states :]
        state, params = rest[: ctx.states], rest[ctx.states :]
        h, final = reference.recurrence(
            ctx.cell, u, R, state, bias=bias, params=params, batch_sizes=batch_sizes, reset=reset,
            reverse=ctx.reverse, grad_scale=grad_scale, weight_ih=weight_ih, bias_ih=bias_ih,
        )  # fmt: skip
        # The backward's outputs, in its order; du, dR, dbias, then state and params, then weight_ih and bias_ih.
        needed = (
            (u, weight_ih is None or ctx.needs_u), (R, ctx.needs_R), (bias, ctx.needs_bias),
            *((x, True) for x in (*state, *params)), (weight_ih, ctx.needs_weight_ih), (bias_ih, ctx.needs_bias_ih),
        )[: len(grads)]  # fmt: skip
        wanted = [
            (x, g) for (x, need), g in zip(needed, grads, strict=True) if need and x is not None and g is not None
        ]
        outputs = [(h, grad_h), *zip(final, grad_state, strict=False)]
        outputs = [(y, g) for y, g in outputs if g is not None and y.requires_grad]
        first = ()
        if outputs:  # but for T = 0 without a gradient of the final state
            first = torch.autograd.grad(
                [y for y, _ in outputs], [x for x, _ in wanted], [g for _, g in outputs], create_graph=True,
                materialize_grads=True,
            )  # fmt: skip
        inputs = [x for x in (grad_h, u, R, bias, weight_ih, bias_ih, *rest, *grad_state) if x is not None]
        pairs = [(y, g) for y, (_, g) in zip(first, wanted, strict=bool(first)) if y.requires_grad]
        second = (None,) * len(inputs)
        if pairs:
            second = torch.autograd.grad(
                [y for y, _ in pairs], inputs, [g for _, g in pairs], allow_unused=True,
                create_graph=torch.is_grad_enabled(),
            )  # fmt: skip
    second = dict(zip(map(id, inputs), second, strict=True))
    get = lambda x: second.get(id(x))  # noqa: E731
    return (
        None, get(grad_h), [get(g) for g in grad_state], get(u), get(R), [get(s) for s in state], get(bias),
        [get(p) for p in params], None, None, None, None, None, [None] * ctx.saved, None, None,
        get(weight_ih), get(bias_ih), None, None, None,
    )  # fmt: skip


if _extension.available:
    torch.library.register_fake("rnnkern::recurrence", _forward_shapes)
    torch.library.register_fake("rnnkern::recurrence_backward", _backward_shapes)
    torch.library.register_autograd(
        "rnnkern::recurrence_backward", _differentiate_backward, setup_context=_setup_backward
    )
