"""Fused recurrence over time: the public function, its checks, its choice of implementation and its derivatives."""

import json
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rnnkern import _extension, reference
from rnnkern.ops.dispatch import Choice, choose
from rnnkern.reference import CELLS

KERNEL_CELLS: dict[str, dict[str, int]] = (
    json.loads(torch.ops.rnnkern.recurrence_cells()) if _extension.available else {}
)
"""The facts of the cells that have a kernel (csrc/cells/list.h)."""

_operators = torch.ops.rnnkern

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def recurrence(
    cell: str,
    u: Tensor,
    R: Tensor,
    state: Sequence[Tensor],
    *,
    bias: Tensor | None = None,
    params: Sequence[Tensor] = (),
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    grad_scale: Tensor | None = None,
    save_gates: bool | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    r"""Runs a recurrent cell over a sequence whose input projection ``u`` is already there.

    At each step :math:`r_t = R h_{t-1} + b` and the cell's pointwise equations turn :math:`(u_t, r_t)` and the old
    state into the new one. T steps, B sequences, H hidden units, G gates of the cell.

    Args:
        cell: name of a cell of :data:`rnnkern.reference.CELLS`, such as ``"tanh"`` (G = 1), ``"gru"`` (G = 3) or
            ``"lstm"`` (G = 4); the documentation's table has all. Gates stand in PyTorch's order.
        u: (T, B, G*H), or packed (sum of ``batch_sizes``, G*H) as in
            :class:`torch.nn.utils.rnn.PackedSequence`; float32, float64, bfloat16 or float16.
        R: (G*H, H), or (K, G*D, D) with H = K*D for K independent heads: unit k*D+d of gate g is row g*D+d of
            head k and column g*H+k*D+d of ``u``.
        state: initial state ``(h0,)``, for an LSTM ``(h0, c0)``, each (B, H).
        bias: b_hh, (G*H,).
        params: the cell's own tensors, in the order of its ``CELLS[cell].params``, each (H,). (lstm_projected's
            ``weight_hr`` is (P, H); h then has P columns and R is (4*H, P).)
        batch_sizes: (T,) int64 on the CPU, never growing: how many sequences are alive at each step.
        reset: (T, B) bool, also when packed. Where true the state is zeroed before step t in processing order.
        reverse: run from each sequence's last step to its first.
        grad_scale: (T,) or (T, B), of the dtype of ``u``: multiplies :math:`R^T \partial L/\partial r_t` in the
            backward (0 is h-detach, Kanuparthi et al. 2019). A constant: no gradient flows to it.
        save_gates: keep the gates for the backward (True) or compute them again there (False). None takes the
            device's default: True on a CPU; False on a GPU, where they come back a block of steps at a time.

    Returns:
        h, like ``u`` with H columns, and the final state, each (B, H), taken at each sequence's own last step.
        Gradients flow from both to ``u``, ``R``, ``state``, ``bias`` and ``params``, and gradients of those; there is
        no forward mode, which raises.

    Raises:
        ValueError: a size, a rank, a cell or a value of ``batch_sizes`` is wrong, or :func:`rnnkern.use` forces an
            implementation that cannot serve the call.
        TypeError: an argument's type, dtype or device is wrong.

    Equations: docs, "Recurrence"; :mod:`rnnkern.reference.recurrence`.

    >>> u, R, h0 = torch.randn(5, 2, 12), torch.randn(12, 3), torch.zeros(2, 3)
    >>> h, (h_n, c_n) = recurrence("lstm", u, R, (h0, h0))
    >>> h.shape, h_n.shape
    (torch.Size([5, 2, 3]), torch.Size([2, 3]))
    """
    check(cell, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, save_gates)
    if _choose(cell, u).implementation == "reference":
        return reference.recurrence(
            cell, u, R, state, bias=bias, params=params, batch_sizes=batch_sizes, reset=reset, reverse=reverse,
            grad_scale=grad_scale,
        )  # fmt: skip
    if save_gates is None:
        save_gates = u.device.type == "cpu"
    if _needs_derivatives(u, R, bias, *state, *params):
        h, *rest = _Recurrence.apply(
            cell, reverse, save_gates, len(state), u, R, bias, batch_sizes, reset, grad_scale, *state, *params
        )  # fmt: skip
    else:
        h, *rest = _operators.recurrence.default(
            cell, u, R, state, bias, params, batch_sizes, reset, reverse, False, False
        )  # fmt: skip
    return h, tuple(rest[: len(state)])


def _choose(cell: str, u: Tensor) -> Choice:
    """The written table: a cell with a kernel runs it, in every dtype."""
    why = None
    if not _extension.available:
        why = _extension.reason
    elif cell not in KERNEL_CELLS:
        why = f"the cell {cell!r} has no kernel"
    cpu = cuda = why
    if u.device.type != "cpu":
        cpu = f"the tensors are on {u.device}"
    if u.device.type != "cuda":
        cuda = f"the tensors are on {u.device}"
    elif why is None:
        cuda = _extension.cuda_refusal(u.device)
    return choose("recurrence", {"cuda": cuda, "cpu": cpu})


def _choose_checked(cell, u, R, state, *, bias=None, params=(), batch_sizes=None, reset=None, reverse=False,
                    grad_scale=None, save_gates=None) -> Choice:  # fmt: skip
    check(cell, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, save_gates)
    choice = _choose(cell, u)
    if choice.implementation != "cuda":
        return choice
    facts = _extension.device_facts(u.device)
    if facts is None:
        return choice._replace(reason=f"{choice.reason}; which of them, the device decides, and none is here")
    steps = u.shape[0] if batch_sizes is None else batch_sizes.shape[0]
    sizes = (steps, state[0].shape[0], state[0].shape[1], R.shape[0] if R.dim() == 3 else 1)
    plan = json.loads(_operators.recurrence_plan(cell, str(u.dtype).removeprefix("torch."), sizes, facts))
    return choice._replace(reason=f"{choice.reason}: {plan['kernel']}, for {plan['reason']}")


recurrence.choose = _choose_checked


def _needs_derivatives(*tensors: Tensor | None) -> bool:
    """Forward mode counts: the autograd.Function refuses it, the plain operator would return zero tangents."""
    backward = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return backward or forward_ad._current_level >= 0


# ---- checks: real and fake tensors alike


def check(cell, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, save_gates) -> None:
    """Raises what :func:`recurrence` documents; nothing else of the family checks arguments."""
    if not isinstance(cell, str) or cell not in CELLS:
        raise ValueError(f"recurrence: `cell` must be one of {sorted(CELLS)}, got {cell!r}")
    _, gates, states, names, _ = CELLS[cell]
    _check_tensor("u", u, u)
    if u.dtype not in DTYPES:
        raise TypeError(f"recurrence: `u` must be of a dtype of {DTYPES}, got {u.dtype}")
    for name, group, wanted in (("state", state, ("h0", "c0")[:states]), ("params", params, names)):
        if not isinstance(group, (tuple, list)):
            raise TypeError(f"recurrence: `{name}` must be a tuple of tensors, got {type(group).__name__}")
        if len(group) != len(wanted):
            raise ValueError(
                f"recurrence: `{name}` of the cell {cell!r} must be ({', '.join(wanted)}), "
                f"{len(wanted)} tensors, got {len(group)}"
            )
    for name, tensor in (("R", R), ("bias", bias), ("grad_scale", grad_scale)):
        if tensor is not None or name == "R":
            _check_tensor(name, tensor, u)
    for name, group in (("state", state), ("params", params)):
        for k, tensor in enumerate(group):
            _check_tensor(f"{name}[{k}]", tensor, u)
    for name, flag in (("reverse", reverse), ("save_gates", save_gates)):
        if not isinstance(flag, bool) and (name == "reverse" or flag is not None):
            raise TypeError(f"recurrence: `{name}` must be a bool, got {flag!r}")

    if u.dim() != (3 if batch_sizes is None else 2):
        wanted = "(T, B, G*H)" if batch_sizes is None else "(sum of batch_sizes, G*H) when `batch_sizes` is given"
        raise ValueError(f"recurrence: `u` must be {wanted}, got {_shape(u)}")
    if u.shape[-1] % gates or u.shape[-1] == 0:
        raise ValueError(
            f"recurrence: the last size of `u` must be G*H, a positive multiple of G = {gates} for the cell "
            f"{cell!r}, got {_shape(u)}"
        )
    hidden = u.shape[-1] // gates
    width = _check_params(cell, names, params, hidden)
    if R.dim() == 3:
        heads = R.shape[0]
        if width != hidden:
            raise ValueError(f"recurrence: `R` of the cell {cell!r} must be dense, got heads {_shape(R)}")
        if heads == 0 or hidden % heads:
            raise ValueError(f"recurrence: `R` has {heads} heads, which must divide H = {hidden}, got {_shape(R)}")
        d = hidden // heads
        _check_shape("R", R, "(K, G*D, D)", (heads, gates * d, d))
    else:
        _check_shape("R", R, "(G*H, H)" if width == hidden else "(G*H, P)", (gates * hidden, width))
    if bias is not None:
        _check_shape("bias", bias, "(G*H,)", (gates * hidden,))

    if state[0].dim() != 2:
        raise ValueError(f"recurrence: `state[0]` must be (B, H), got {_shape(state[0])}")
    batch = state[0].shape[0] if batch_sizes is not None else u.shape[1]
    for k, s in enumerate(state):
        columns = width if k == 0 else hidden
        _check_shape(f"state[{k}]", s, "(B, H)" if columns == hidden else "(B, P)", (batch, columns))
    steps = u.shape[0]
    if batch_sizes is not None:
        steps = _check_batch_sizes(batch_sizes, u.shape[0], batch)
    if reset is not None:
        if not isinstance(reset, Tensor) or reset.dtype != torch.bool:
            got = reset.dtype if isinstance(reset, Tensor) else type(reset).__name__
            raise TypeError(f"recurrence: `reset` must be a bool tensor, got {got}")
        if reset.device != u.device:
            raise TypeError(f"recurrence: `reset` must be on {u.device} like `u`, got {reset.device}")
        _check_shape("reset", reset, "(T, B)", (steps, batch))
    if grad_scale is not None and tuple(grad_scale.shape) not in ((steps,), (steps, batch)):
        raise ValueError(
            f"recurrence: `grad_scale` must be (T,) = ({steps},) or (T, B) = ({steps}, {batch}), "
            f"got {_shape(grad_scale)}"
        )


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _check_tensor(name: str, tensor: Tensor, like: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"recurrence: `{name}` must be a tensor, got {type(tensor).__name__}")
    if tensor.dtype != like.dtype:
        raise TypeError(f"recurrence: `{name}` must be of dtype {like.dtype} like `u`, got {tensor.dtype}")
    if tensor.device != like.device:
        raise TypeError(f"recurrence: `{name}` must be on {like.device} like `u`, got {tensor.device}")


def _check_shape(name: str, tensor: Tensor, symbols: str, wanted: tuple[int, ...]) -> None:
    if tensor.dim() != len(wanted) or tuple(tensor.shape) != wanted:
        raise ValueError(f"recurrence: `{name}` must be {symbols} = {wanted}, got {_shape(tensor)}")


def _check_params(cell: str, names: Sequence[str], params: Sequence[Tensor], hidden: int) -> int:
    """Returns the number of columns of h."""
    if cell == "lstm_projected":
        (weight,) = params
        if weight.dim() != 2 or weight.shape[1] != hidden:
            raise ValueError(
                f"recurrence: `params[0]` (weight_hr) must be (P, H) = (P, {hidden}), got {_shape(weight)}"
            )
        return weight.shape[0]
    for k, name in enumerate(names):
        _check_shape(f"params[{k}]", params[k], f"(H,), the cell's {name},", (hidden,))
    return hidden


def _check_batch_sizes(batch_sizes: Tensor, rows: int, batch: int) -> int:
    """Returns T. Values are read where they exist: a fake tensor has only a shape."""
    if not isinstance(batch_sizes, Tensor) or batch_sizes.dtype != torch.int64 or batch_sizes.device.type != "cpu":
        got = (batch_sizes.dtype, batch_sizes.device) if isinstance(batch_sizes, Tensor) else type(batch_sizes).__name__
        raise TypeError(f"recurrence: `batch_sizes` must be an int64 tensor on the CPU, got {got}")
    if batch_sizes.dim() != 1:
        raise ValueError(f"recurrence: `batch_sizes` must be (T,), got {_shape(batch_sizes)}")
    if not torch.compiler.is_compiling() and not isinstance(batch_sizes, torch._subclasses.FakeTensor):
        sizes = batch_sizes.tolist()
        if any(a < b for a, b in zip([batch, *sizes], sizes, strict=False)):
            raise ValueError(
                f"recurrence: `batch_sizes` must never grow and begin with at most B = {batch}, the rows of "
                f"`state[0]`, got {sizes}"
            )
        if sizes and sizes[-1] < 0:
            raise ValueError(f"recurrence: `batch_sizes` must not be negative, got {sizes}")
        if sum(sizes) != rows:
            raise ValueError(
                f"recurrence: `batch_sizes` must sum to the rows of `u`, {rows}, got a sum of {sum(sizes)}"
            )
    return batch_sizes.shape[0]


# ---- derivatives: an autograd.Function around the plain forward operator; the reference differentiates the backward


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(cell, reverse, save_gates, states, u, R, bias, batch_sizes, reset, grad_scale, *tensors):
        state, params = tensors[:states], tensors[states:]
        return tuple(
            _operators.recurrence.default(
                cell, u, R, state, bias, params, batch_sizes, reset, reverse, True, save_gates
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
        u, R, bias, batch_sizes, reset, grad_scale, *rest = tensors[: ctx.inputs]
        h, *saved = tensors[ctx.inputs :]
        state, params = rest[: ctx.states], rest[ctx.states :]
        grad_state = grad_rest[: ctx.states]
        if all(g is None for g in grad_state):
            grad_state = []
            if grad_h is None:
                return (None,) * (4 + ctx.inputs)
        else:
            grad_state = [torch.zeros_like(s) if g is None else g for g, s in zip(grad_state, state, strict=True)]
        du, dR, dbias, *d_rest = _operators.recurrence_backward.default(
            ctx.cell, grad_h, grad_state, u, R, state, bias, params, batch_sizes, reset, ctx.reverse, grad_scale, h,
            saved, ctx.needs_input_grad[5], bias is not None and ctx.needs_input_grad[6],
        )  # fmt: skip
        dR = dR if ctx.needs_input_grad[5] else None
        dbias = dbias if ctx.needs_input_grad[6] else None
        return (None, None, None, None, du, dR, dbias, None, None, None, *d_rest)


def _forward_shapes(cell, u, R, state, bias, params, batch_sizes, reset, reverse, training, save_gates):
    hidden = u.shape[-1] // CELLS[cell].gates
    outputs = [u.new_empty(*u.shape[:-1], hidden), *(s.new_empty(s.shape) for s in state)]
    if training:
        arithmetic = torch.promote_types(u.dtype, torch.float32)
        outputs += [u.new_empty(*u.shape[:-1], hidden, dtype=arithmetic) for _ in state[1:]]
        if save_gates and KERNEL_CELLS[cell]["saved"]:
            outputs.append(u.new_empty(*u.shape[:-1], KERNEL_CELLS[cell]["saved"] * hidden, dtype=arithmetic))
    return outputs


def _backward_shapes(cell, grad_h, grad_state, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, h,
                     saved, needs_R, needs_bias):  # fmt: skip
    return [
        u.new_empty(u.shape),
        R.new_empty(R.shape if needs_R else (0,)),
        u.new_empty(u.shape[-1] if needs_bias else 0),
        *(x.new_empty(x.shape) for x in (*state, *params)),
    ]


def _setup_backward(ctx, inputs, output):
    (ctx.cell, grad_h, grad_state, u, R, state, bias, params, batch_sizes, reset, ctx.reverse, grad_scale, _, saved,
     ctx.needs_R, ctx.needs_bias) = inputs  # fmt: skip
    ctx.grad_states, ctx.states, ctx.saved = len(grad_state), len(state), len(saved)
    ctx.save_for_backward(grad_h, u, R, bias, batch_sizes, reset, grad_scale, *grad_state, *state, *params)


def _differentiate_backward(ctx, grads):
    """Second derivatives: the backward is the reference's gradient, so its gradient is the reference's second one."""
    grad_h, u, R, bias, batch_sizes, reset, grad_scale, *rest = ctx.saved_tensors
    # Aliases stand between the graph that leads here and the one built below; orders above two go through them.
    alias = lambda x: None if x is None else (x.view_as(x) if x.requires_grad else x.detach().requires_grad_())  # noqa: E731
    with torch.enable_grad():
        grad_h, u, R, bias, *rest = (alias(x) for x in (grad_h, u, R, bias, *rest))
        grad_state, rest = rest[: ctx.grad_states], rest[ctx.grad_states :]
        state, params = rest[: ctx.states], rest[ctx.states :]
        h, final = reference.recurrence(
            ctx.cell, u, R, state, bias=bias, params=params, batch_sizes=batch_sizes, reset=reset,
            reverse=ctx.reverse, grad_scale=grad_scale,
        )  # fmt: skip
        # The backward's outputs, in its order; du, dR, dbias, then state and params.
        wanted = [(u, grads[0]), (R, grads[1] if ctx.needs_R else None), (bias, grads[2] if ctx.needs_bias else None)]
        wanted = [(x, g) for x, g in (*wanted, *zip((*state, *params), grads[3:], strict=True)) if g is not None]
        outputs = [(h, grad_h), *zip(final, grad_state, strict=False)]
        outputs = [(y, g) for y, g in outputs if g is not None and y.requires_grad]
        first = ()
        if outputs:  # but for T = 0 without a gradient of the final state
            first = torch.autograd.grad(
                [y for y, _ in outputs], [x for x, _ in wanted], [g for _, g in outputs], create_graph=True,
                materialize_grads=True,
            )  # fmt: skip
        inputs = [x for x in (grad_h, u, R, bias, *rest, *grad_state) if x is not None]
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
    )  # fmt: skip


if _extension.available:
    torch.library.register_fake("rnnkern::recurrence", _forward_shapes)
    torch.library.register_fake("rnnkern::recurrence_backward", _backward_shapes)
    torch.library.register_autograd(
        "rnnkern::recurrence_backward", _differentiate_backward, setup_context=_setup_backward
    )
