"""Fused recurrence over time: the public function, its checks, its choice of implementation and its derivatives."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops._recurrence.autograd import (
    KERNEL_CELLS,
    Rates,
    Recomputed,
    differentiable,
    hidden_size,
    operator_rates,
)
from rnnkern.ops._recurrence.complex import columns_in_parts, of_parts, rows_in_parts, state_in_parts
from rnnkern.ops.checks import check_batch_sizes, check_like, check_reset, check_shape, shape_of
from rnnkern.ops.dispatch import Choice, choose, forced
from rnnkern.ops.programs import told
from rnnkern.ops.transforms import needs_derivatives, transformed
from rnnkern.reference import CELLS

_operators = torch.ops.rnnkern

LEAST_RATE = 2.0**-32
"""Of zoneout and dropout: what is less draws nothing from 32 bits, and counts as 0."""

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

COMPLEX = {"modrelu": "complex_modrelu"}
"""Cells of complex numbers, and what computes them part by part."""


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
    save_u: bool = False,
    weight_ih: Tensor | None = None,
    bias_ih: Tensor | None = None,
    zoneout: float | Sequence[float] = 0.0,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    r"""Runs a recurrent cell over a sequence: over its input projection ``u`` or, with ``weight_ih``, over the input.

    At each step :math:`r_t = R h_{t-1} + b` and the cell's pointwise equations turn :math:`(u_t, r_t)` and the old
    state into the new one. T steps, B sequences, I inputs, H hidden units, G gates of the cell.

    Args:
        cell: name of a cell of :data:`rnnkern.reference.CELLS`, such as ``"tanh"`` (G = 1), ``"gru"`` (G = 3) or
            ``"lstm"`` (G = 4); the documentation's table has all. Gates stand in PyTorch's order.
        u: (T, B, G*H), or packed (sum of ``batch_sizes``, G*H) as in
            :class:`torch.nn.utils.rnn.PackedSequence`; float32, float64, bfloat16 or float16, of ``"modrelu"``
            complex64 or complex128 too. With ``weight_ih`` the input x itself, with I columns.
        R: (G*H, H), or (K, G*D, D) with H = K*D for K independent heads: unit k*D+d of gate g is row g*D+d of
            head k and column g*H+k*D+d of ``u``.
        state: initial state ``(h0,)``, for an LSTM ``(h0, c0)``, each (B, H).
        bias: b_hh, (G*H,).
        params: the cell's own tensors, in the order of its ``CELLS[cell].params``, each (H,). (lstm_projected's
            ``weight_hr`` is (P, H); h then has P columns and R is (4*H, P). ``weight_ln_hh`` of lstm_layer_norm and
            gru_layer_norm is (G*H,).) Real where ``u`` is complex.
        batch_sizes: (T,) int64 on the CPU, never growing: how many sequences are alive at each step.
        reset: (T, B) bool, also when packed. Where true the state is zeroed before step t in processing order.
        reverse: run from each sequence's last step to its first.
        grad_scale: (T,) or (T, B), of the dtype of ``u``, real where that is complex: multiplies
            :math:`R^T \partial L/\partial r_t` in the backward (0 is h-detach, Kanuparthi et al. 2019). A
            constant: no gradient flows to it.
        save_gates: keep the gates for the backward (True) or compute them again there (False). None takes the
            device's default: True on a CPU, False on a GPU. They come back a block of steps at a time.
        save_u: keep ``u`` too, for second derivatives. Without it ``u`` is kept only where the gates are computed again
            from it and under the transforms of ``torch.func``; with ``weight_ih`` second derivatives compute it from x.
        weight_ih: W, (G*H, I): :math:`u_t = W x_t + b_{ih}` is computed here, without a norm. On a CPU a few steps at
            a time, inside the kernel, so that u is never there as a whole.
        bias_ih: b_ih, (G*H,), beside ``weight_ih``.
        zoneout: in [0, 1), for an LSTM of h and of c, or one for both: the probability with which a unit of the state
            keeps its old value at a step (Krueger et al. 2017). Drawn from ``seed``; without one the mean,
            ``zoneout * old + (1 - zoneout) * new``. 0 where ``u`` is complex.
        dropout: in [0, 1), the probability with which R does not see a unit of h, the same units at all steps of a
            sequence; the others are multiplied by 1 / (1 - dropout) (Gal and Ghahramani 2016). Drawn from ``seed``;
            without one nothing is dropped. 0 where ``u`` is complex.
        seed: int64, one element, on the device of ``u``. Draws are a function of it, the step, the sequence's row and
            the unit, the same on every device, so that none is kept for the backward.

    Returns:
        h, like ``u`` with H columns, and the final state, each (B, H), taken at each sequence's own last step.
        Gradients flow from both to ``u``, ``R``, ``state``, ``bias``, ``params``, ``weight_ih`` and ``bias_ih``, and
        gradients of those, under the transforms of ``torch.func`` too.

    Raises:
        ValueError: a size, a rank, a cell or a value of ``batch_sizes`` is wrong, or :func:`rnnkern.use` forces an
            implementation that cannot serve the call.
        TypeError: an argument's type, dtype or device is wrong.
        NotImplementedError: in forward mode (``torch.func.jvp``), which the kernels have not; in a second derivative of
            packed input that the compiler traces.
        RuntimeError: in a second derivative, if ``u`` was not kept; the message names ``save_u``.

    Equations: docs, "Recurrence"; :mod:`rnnkern.reference._recurrence`.

    >>> u, R, h0 = torch.randn(5, 2, 12), torch.randn(12, 3), torch.zeros(2, 3)
    >>> h, (h_n, c_n) = recurrence("lstm", u, R, (h0, h0))
    >>> h.shape, h_n.shape
    (torch.Size([5, 2, 3]), torch.Size([2, 3]))
    """
    check(cell, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, save_gates, save_u, weight_ih,
          bias_ih)  # fmt: skip
    rates, seed = _noise(zoneout, dropout, seed, len(state), u)
    implementation = _choose(cell, u).implementation
    if implementation == "reference":
        return reference.recurrence(
            cell, u, R, state, bias=bias, params=params, batch_sizes=batch_sizes, reset=reset, reverse=reverse,
            grad_scale=grad_scale, weight_ih=weight_ih, bias_ih=bias_ih, zoneout=rates[:-1] or 0.0,
            dropout=rates[-1] if rates else 0.0, seed=seed,
        )  # fmt: skip
    if u.is_complex():
        if weight_ih is not None:
            u, save_u = _projected(u, weight_ih, bias_ih)
        u, save_u = columns_in_parts(u), _then(columns_in_parts, save_u)
        bias = None if bias is None else columns_in_parts(bias)
        h, (final,) = recurrence(
            COMPLEX[cell], u, rows_in_parts(R), (state_in_parts(state[0]),), bias=bias,
            params=[x.repeat_interleave(2) for x in params], batch_sizes=batch_sizes, reset=reset, reverse=reverse,
            grad_scale=grad_scale, save_gates=save_gates, save_u=save_u,
        )  # fmt: skip
        return of_parts(h), (of_parts(final),)
    if implementation == "cuda" and weight_ih is not None:
        if bias is not None and bias_ih is not None and CELLS[cell].joint:
            # One bias: its gradient comes out of the loop, where b_ih's would take a pass over all of u's.
            bias, bias_ih = bias + bias_ih, None
        u, save_u = _projected(u, weight_ih, bias_ih)
        weight_ih = bias_ih = None
    if save_gates is None:
        save_gates = u.device.type == "cpu"
    if needs_derivatives(u, weight_ih, bias_ih, R, bias, *state, *params):
        keep_u, recompute_u, sources = save_u, None, ()
        if transformed():
            keep_u = True
        elif isinstance(save_u, Recomputed):
            keep_u = False
            if not torch.compiler.is_compiling():  # the compiler takes no second derivatives
                recompute_u, sources = save_u
        h, *rest = differentiable(
            cell, reverse, (save_gates, keep_u, recompute_u), len(state), rates, u, weight_ih, bias_ih, R, bias,
            batch_sizes, reset, grad_scale, seed, *state, *params, *sources,
        )  # fmt: skip
    else:
        h, *rest = _operators.recurrence.default(
            cell, u, R, state, bias, params or None, batch_sizes, reset, reverse, False, False, weight_ih, bias_ih,
            *operator_rates(rates), seed,
        )  # fmt: skip
    return h, tuple(rest[: len(state)])


def _projected(x: Tensor, weight_ih: Tensor, bias_ih: Tensor | None) -> tuple[Tensor, Recomputed]:
    """u, and how second derivatives compute it again from the input."""
    return F.linear(x, weight_ih, bias_ih), Recomputed(F.linear, (x, weight_ih, bias_ih))


def _then(function: Callable[[Tensor], Tensor], save_u: bool | Recomputed) -> bool | Recomputed:
    """What is given as ``save_u`` for function(u)."""
    if not isinstance(save_u, Recomputed):
        return save_u
    return Recomputed(lambda *tensors: function(save_u.function(*tensors)), save_u.tensors)


def step(cell: str, x: Tensor, R: Tensor, state: Sequence[Tensor], bias: Tensor | None, weight_ih: Tensor,
         bias_ih: Tensor | None) -> list[Tensor] | None:  # fmt: skip
    """One step without derivatives, as inference goes on, where the CPU kernel serves it; None where it does not.

    The kernel's own checks are all that there are. They keep memory safe and name the argument.

    Args:
        x: (1, B, I). All else as in :func:`recurrence`; each of ``state`` may be (1, B, H).

    Returns:
        [h (1, B, H), and the final state, shaped as it was given].
    """
    facts = KERNEL_CELLS.get(cell)
    if facts is None or facts["params"] or not x.is_cpu or forced() is not None:
        return None
    if transformed() or torch.jit.is_tracing():
        return None
    return _operators.recurrence.default(
        cell, x, R, state, bias, None, None, None, False, False, False, weight_ih, bias_ih
    )  # fmt: skip


def _choose(cell: str, u: Tensor) -> Choice:
    """The written table: a cell with a kernel on the device runs it, in every dtype."""
    why = None
    if u.is_complex():
        cell = COMPLEX[cell]
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
                    grad_scale=None, save_gates=None, save_u=False, weight_ih=None, bias_ih=None, zoneout=0.0,
                    dropout=0.0, seed=None) -> Choice:  # fmt: skip
    check(cell, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, save_gates, save_u, weight_ih,
          bias_ih)  # fmt: skip
    rates, _ = _noise(zoneout, dropout, seed, len(state), u)
    steps = u.shape[0] if batch_sizes is None else batch_sizes.shape[0]
    parts, dtype = (2, u.dtype.to_real()) if u.is_complex() else (1, u.dtype)
    sizes = (steps, state[0].shape[0], parts * hidden_size(cell, u, weight_ih), R.shape[0] if R.dim() == 3 else 1)
    kernel_cell = COMPLEX[cell] if u.is_complex() else cell
    return told(
        _choose(cell, u), u.device, dtype,
        lambda dtype, facts, tf32: _operators.recurrence_plan(kernel_cell, dtype, sizes, facts, any(rates), tf32),
        lambda plan: f"{plan['kernel']}, for {plan['reason']}",
    )  # fmt: skip


recurrence._choose = _choose_checked


# ---- checks: real and fake tensors alike


def check(cell, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, save_gates, save_u=False,
          weight_ih=None, bias_ih=None) -> None:  # fmt: skip
    """Raises what :func:`recurrence` documents; nothing else of the family checks arguments."""
    if not isinstance(cell, str) or cell not in CELLS:
        raise ValueError(f"recurrence: `cell` must be one of {sorted(CELLS)}, got {cell!r}")
    _, gates, states, names, _ = CELLS[cell]
    check_like("recurrence", "u", u, "u", u)
    dtypes = (*DTYPES, torch.complex64, torch.complex128) if cell in COMPLEX else DTYPES
    if u.dtype not in dtypes:
        raise TypeError(f"recurrence: `u` must be of a dtype of {dtypes}, got {u.dtype}")
    for name, group, wanted in (("state", state, ("h0", "c0")[:states]), ("params", params, names)):
        if not isinstance(group, (tuple, list)):
            raise TypeError(f"recurrence: `{name}` must be a tuple of tensors, got {type(group).__name__}")
        if len(group) != len(wanted):
            raise ValueError(
                f"recurrence: `{name}` of the cell {cell!r} must be ({', '.join(wanted)}), "
                f"{len(wanted)} tensors, got {len(group)}"
            )
    optional = {"bias": bias, "weight_ih": weight_ih, "bias_ih": bias_ih}
    real = ("u.real", u.real) if u.is_complex() else ("u", u)
    for name, tensor in (("R", R), *optional.items()):
        if tensor is not None or name == "R":
            check_like("recurrence", name, tensor, "u", u)
    if grad_scale is not None:
        check_like("recurrence", "grad_scale", grad_scale, *real)
    for name, group, like in (("state", state, ("u", u)), ("params", params, real)):
        for k, tensor in enumerate(group):
            check_like("recurrence", f"{name}[{k}]", tensor, *like)
    for name, flag in (("reverse", reverse), ("save_gates", save_gates)):
        if not isinstance(flag, bool) and (name == "reverse" or flag is not None):
            raise TypeError(f"recurrence: `{name}` must be a bool, got {flag!r}")
    if not isinstance(save_u, (bool, Recomputed)):
        raise TypeError(f"recurrence: `save_u` must be a bool, got {save_u!r}")

    if u.dim() != (3 if batch_sizes is None else 2):
        wanted = "(T, B, G*H)" if batch_sizes is None else "(sum of batch_sizes, G*H) when `batch_sizes` is given"
        raise ValueError(f"recurrence: `u` must be {wanted}, got {shape_of(u)}")
    hidden = _check_projection(cell, gates, u, weight_ih, bias_ih)
    width = _check_params(cell, names, params, hidden)
    if R.dim() == 3:
        heads = R.shape[0]
        if cell == "lstm_projected" or CELLS[cell].normalised:
            raise ValueError(f"recurrence: `R` of the cell {cell!r} must be dense, got heads {shape_of(R)}")
        if heads == 0 or hidden % heads:
            raise ValueError(f"recurrence: `R` has {heads} heads, which must divide H = {hidden}, got {shape_of(R)}")
        d = hidden // heads
        check_shape("recurrence", "R", R, "(K, G*D, D)", (heads, gates * d, d))
    else:
        check_shape("recurrence", "R", R, "(G*H, H)" if width == hidden else "(G*H, P)", (gates * hidden, width))
    if bias is not None:
        check_shape("recurrence", "bias", bias, "(G*H,)", (gates * hidden,))

    if state[0].dim() != 2:
        raise ValueError(f"recurrence: `state[0]` must be (B, H), got {shape_of(state[0])}")
    batch = state[0].shape[0] if batch_sizes is not None else u.shape[1]
    for k, s in enumerate(state):
        columns = width if k == 0 else hidden
        check_shape("recurrence", f"state[{k}]", s, "(B, H)" if columns == hidden else "(B, P)", (batch, columns))
    steps = u.shape[0]
    if batch_sizes is not None:
        steps = check_batch_sizes("recurrence", batch_sizes, u.shape[0], batch)
    if reset is not None:
        check_reset("recurrence", reset, u, steps, batch)
    if grad_scale is not None and tuple(grad_scale.shape) not in ((steps,), (steps, batch)):
        raise ValueError(
            f"recurrence: `grad_scale` must be (T,) = ({steps},) or (T, B) = ({steps}, {batch}), "
            f"got {shape_of(grad_scale)}"
        )


def _noise(zoneout, dropout, seed, states: int, u: Tensor) -> tuple[Rates, Tensor | None]:
    """Returns the rates as the operator takes them and the seed where anything is drawn from it."""
    if zoneout == 0 and dropout == 0 and seed is None:
        return (), None
    rates = (zoneout,) * states if isinstance(zoneout, (int, float)) else zoneout
    if not isinstance(rates, (tuple, list)) or len(rates) != states:
        raise ValueError(f"recurrence: `zoneout` must be a float or {states} of them, one per state, got {zoneout!r}")
    for name, rate in (*(("zoneout", rate) for rate in rates), ("dropout", dropout)):
        if isinstance(rate, bool) or not isinstance(rate, (int, float)):
            raise TypeError(f"recurrence: `{name}` must be a float, got {type(rate).__name__}")
        if not 0 <= rate < 1:
            raise ValueError(f"recurrence: `{name}` must be in [0, 1), got {rate}")
        if rate and u.is_complex():
            raise ValueError(f"recurrence: `{name}` must be 0 for a complex `u`, got {rate}")
    if seed is not None:
        if not isinstance(seed, Tensor) or seed.dtype != torch.int64:
            got = seed.dtype if isinstance(seed, Tensor) else type(seed).__name__
            raise TypeError(f"recurrence: `seed` must be an int64 tensor, got {got}")
        if seed.device != u.device:
            raise TypeError(f"recurrence: `seed` must be on {u.device} like `u`, got {seed.device}")
        if seed.numel() != 1:
            raise ValueError(f"recurrence: `seed` must have one element, got {shape_of(seed)}")
    rates = tuple(float(rate) if rate >= LEAST_RATE else 0.0 for rate in (*rates, dropout if seed is not None else 0))
    return (rates, seed) if any(rates) else ((), None)


def _check_projection(cell: str, gates: int, u: Tensor, weight_ih: Tensor | None, bias_ih: Tensor | None) -> int:
    """Returns H."""
    rows = u.shape[-1] if weight_ih is None else weight_ih.shape[0] if weight_ih.dim() == 2 else 0
    if rows % gates or rows == 0:
        wanted = f"G*H, a positive multiple of G = {gates} for the cell {cell!r}"
        if weight_ih is None:
            raise ValueError(f"recurrence: the last size of `u` must be {wanted}, got {shape_of(u)}")
        raise ValueError(f"recurrence: `weight_ih` must be (G*H, I), G*H {wanted[5:]}, got {shape_of(weight_ih)}")
    if weight_ih is not None:
        check_shape("recurrence", "weight_ih", weight_ih, "(G*H, I)", (rows, u.shape[-1]))
    if bias_ih is not None:
        if weight_ih is None:
            raise ValueError("recurrence: `bias_ih` needs `weight_ih` beside it, got None")
        check_shape("recurrence", "bias_ih", bias_ih, "(G*H,)", (rows,))
    return rows // gates


def _check_params(cell: str, names: Sequence[str], params: Sequence[Tensor], hidden: int) -> int:
    """Returns the number of columns of h."""
    if cell == "lstm_projected":
        (weight,) = params
        if weight.dim() != 2 or weight.shape[0] == 0 or weight.shape[1] != hidden:
            raise ValueError(
                f"recurrence: `params[0]` (weight_hr) must be (P, H) = (P, {hidden}), got {shape_of(weight)}"
            )
        return weight.shape[0]
    for k, name in enumerate(names):
        symbols, size = ("G*H", CELLS[cell].gates * hidden) if name == "weight_ln_hh" else ("H", hidden)
        check_shape("recurrence", f"params[{k}]", params[k], f"({symbols},), the cell's {name},", (size,))
    return hidden
