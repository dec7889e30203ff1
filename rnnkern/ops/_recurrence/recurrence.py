"""Fused recurrence over time: the public function, and its choice of implementation."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern._cells import library
from rnnkern._torch_private import in_forward_mode, is_batched
from rnnkern.ops._recurrence.autograd import (
    KERNEL_CELLS,
    Recomputed,
    differentiable,
    hidden_size,
    operator_rates,
)
from rnnkern.ops._recurrence.checks import COMPLEX, check, noise
from rnnkern.ops._recurrence.complex import columns_in_parts, of_parts, rows_in_parts, state_in_parts
from rnnkern.ops._recurrence.linear import linear
from rnnkern.ops.differentiable import can_hand_out, needs_derivatives, transformed
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, cuda_refusal, forced, operator, told
from rnnkern.reference._recurrence import cell_of

_operators = torch.ops.rnnkern


def choose_kernel(operator: str, cell: str, u: Tensor, no_cuda: str | None = None) -> Choice:
    """The implementation of an operator on cells, for the device and dtype of ``u``. ``no_cuda``: why there is no CUDA
    kernel, if so."""
    cell = COMPLEX[cell] if u.is_complex() else cell
    why = on_cuda = None if cell in KERNEL_CELLS else f"the cell {cell!r} has no kernel"
    if library.is_known(cell):
        compiles = forced() != "reference"
        why = library.refusal(cell) if compiles and u.device.type == "cpu" else None
        on_cuda = library.refusal(cell, on_cuda=True) if compiles and u.device.type == "cuda" and not no_cuda else None
    return choose(operator, {"cuda": cuda_refusal(u, no_cuda or on_cuda), "cpu": cpu_refusal(u, why)})


TILED_BATCH = 4
"""The smallest batch whose products are computed in AMX tiles; csrc/recurrence/cpu/operators.cpp decides it."""

NO_KEEP = _extension.missing(
    "`keep` has no CUDA kernel",
    "where all steps have the same weight, pass it as `zoneout` without a seed; otherwise move the call to a CPU",
)


def _choose(cell: str, u: Tensor, keep: Tensor | None = None) -> Choice:
    return choose_kernel("recurrence", cell, u, None if keep is None else NO_KEEP)


def _explain(cell, u, R, state, batch_sizes, weight_ih, zoneout, dropout, seed, keep, steps) -> Choice:
    cell = getattr(cell, "name", cell)
    rates, _ = noise(zoneout, dropout, seed, len(state), u)
    steps = steps or (u.shape[0] if batch_sizes is None else batch_sizes.shape[0])
    parts, dtype = (2, u.dtype.to_real()) if u.is_complex() else (1, u.dtype)
    sizes = (steps, state[0].shape[0], parts * hidden_size(cell, u, weight_ih), R.shape[0] if R.dim() == 3 else 1)
    kernel_cell = COMPLEX[cell] if u.is_complex() else cell

    def plan(dtype: str, facts: tuple[int, ...], tf32: bool) -> str:
        if library.is_known(kernel_cell) and (why := library.refusal(kernel_cell, on_cuda=True)):
            raise RuntimeError(why)
        return _operators.recurrence_plan(kernel_cell, dtype, sizes, facts, any(rates), tf32)

    choice = _choose(cell, u, keep)
    if choice.implementation == "cpu" and (count := _split_in(u, state)):
        how = f"products split float32 into {count} bfloat16 part{'s' * (count > 1)}, as PyTorch's setting allows"
        choice = choice._replace(reason=f"{choice.reason}; {how}")
    return told(choice, u.device, dtype, plan, lambda plan: f"{plan['kernel']}, for {plan['reason']}")


def _split_in(u: Tensor, state: Sequence[Tensor]) -> int:
    """The number of bfloat16 parts into which the products of a call on a CPU split float32."""
    tiled = u.dtype == torch.float32 and state[0].shape[0] >= TILED_BATCH and _extension.in_tiles()
    return _extension.bfloat16_parts() if tiled else 0


@operator(check, _explain)
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
    keep: Tensor | None = None,
    steps: int | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    r"""Runs a recurrent cell over a sequence, given its input projection ``u`` or, with ``weight_ih``, its input.

    At each step :math:`r_t = R h_{t-1} + b`, and the pointwise equations of the cell compute the new state from
    :math:`(u_t, r_t)` and the previous state. T is the number of time steps, B the batch size, I the input size, H the
    hidden size and G the number of gates of the cell.

    Args:
        cell: name of a cell of :data:`rnnkern.reference.CELLS`, such as ``"tanh"`` (G = 1), ``"gru"`` (G = 3) or
            ``"lstm"`` (G = 4); the documentation lists all cells. Gates are in PyTorch's order.
        u: (T, B, G*H), or packed (sum of ``batch_sizes``, G*H) as in :class:`torch.nn.utils.rnn.PackedSequence`;
            float32, float64, bfloat16 or float16, and for ``"modrelu"`` also complex64 or complex128. With
            ``weight_ih``, pass the input x instead, with I columns.
        R: (G*H, H), or (K, G*D, D) for K independent heads, H = K*D: unit k*D+d of gate g is row g*D+d of head k and
            column g*H+k*D+d of ``u``.
        state: initial state ``(h0,)``, for an LSTM ``(h0, c0)``, each (B, H).
        bias: b_hh, (G*H,).
        params: the cell's own tensors, in the order of ``CELLS[cell].params``, each (H,), with two exceptions:
            ``weight_hr`` of lstm_projected is (P, H), h then has P columns and R is (4*H, P); weights and biases of
            norms over all gates are (G*H,). Real even if ``u`` is complex.
        batch_sizes: (T,) int64 on the CPU, non-increasing: the number of sequences that have a step t, as in
            :class:`torch.nn.utils.rnn.PackedSequence`.
        reset: bool mask of shape (T, B), also for packed input. True zeroes the state before step t, in processing
            order.
        reverse: if True, runs from the last step of each sequence to its first.
        grad_scale: (T,) or (T, B), with the dtype of ``u``, or its real dtype if ``u`` is complex. It multiplies
            :math:`R^T \partial L/\partial r_t` in the backward pass; 0 gives h-detach (Kanuparthi et al. 2019). No
            gradient flows to it.
        save_gates: True keeps the gates for the backward pass, False recomputes them there, a block of steps at a time.
            None is True on a CPU and False on a GPU.
        save_u: also keep ``u``, which second derivatives need. Otherwise ``u`` is kept only if the gates are recomputed
            from it, and under the transforms of ``torch.func``. With ``weight_ih`` second derivatives recompute ``u``
            from x.
        weight_ih: W, (G*H, I). The operator then computes :math:`u_t = W x_t + b_{ih}`; on a CPU inside the kernel, a
            few steps at a time, so that the input projection is never materialized.
        bias_ih: b_ih, (G*H,). Needs ``weight_ih``.
        zoneout: probability in [0, 1) that a unit of the state keeps its previous value at a step (Krueger et al.
            2017); for an LSTM one number, or a pair for h and c. It is drawn from ``seed``; without a seed the mean is
            used, ``zoneout * old + (1 - zoneout) * new``. Must be 0 for a complex ``u``.
        dropout: in [0, 1), the rate of variational dropout on the recurrent connection: one mask per sequence, kept
            units are scaled by 1 / (1 - dropout) (Gal and Ghahramani 2016). It is drawn from ``seed``; without a seed
            nothing is dropped. Must be 0 for a complex ``u``.
        seed: int64, one element, on the device of ``u``. Each draw is a function of the seed, the step, the row of the
            sequence and the unit, and is the same on every device. The backward pass draws the same values again, so
            no mask is stored.
        keep: (T,) or (T, B), with the dtype of ``u``, or its real dtype if ``u`` is complex, in [0, 1]: the weight of
            the old state, for each step or each step of each sequence. Every tensor of the state becomes ``keep * old +
            (1 - keep) * new``; 0 leaves the new one and 1 the old one, to the bit. It is a constant, and excludes
            ``zoneout``. Not for cells with norms and the cells ``adams``, ``heavy_ball`` and
            ``heavy_ball_tanh``. On a GPU the reference runs. Values are checked on a CPU.
        steps: T, where all steps read the same ``u`` (1, B, G*H), or input (1, B, I), as in a differential equation
            with a constant input. On a CPU no copy is made, and the gradient is summed in the kernel. Excludes
            ``batch_sizes``.

    Returns:
        h, (T, B, H), or packed like ``u``, and the final state, a tuple of tensors (B, H), taken at the last step of
        each sequence. Gradients flow from both to ``u``, ``R``, ``state``, ``bias``, ``params``, ``weight_ih`` and
        ``bias_ih``. Second derivatives and the transforms of ``torch.func`` are supported.

    Raises:
        ValueError: a shape, the cell or a value of ``batch_sizes``, ``keep`` or ``steps`` is wrong, ``keep`` requires a
            gradient or comes with ``zoneout``, or :func:`rnnkern.use` forces an implementation that cannot run it.
        TypeError: an argument has the wrong type, dtype or device.
        NotImplementedError: forward mode (``torch.func.jvp``) with ``grad_scale``, or a second derivative of packed
            input under ``torch.compile``.
        RuntimeError: a second derivative needs ``u``, which was not saved; set ``save_u``.

    See also: :func:`rnnkern.reference.recurrence`, the same equations in plain PyTorch.

    >>> u, R, h0 = torch.randn(5, 2, 12), torch.randn(12, 3), torch.zeros(2, 3)
    >>> h, (h_n, c_n) = recurrence("lstm", u, R, (h0, h0))
    >>> h.shape, h_n.shape
    (torch.Size([5, 2, 3]), torch.Size([2, 3]))
    """
    cell = getattr(cell, "name", cell)
    check(cell, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, save_gates, save_u, weight_ih,
          bias_ih, keep, zoneout, steps)  # fmt: skip
    rates, seed = noise(zoneout, dropout, seed, len(state), u)
    implementation = _choose(cell, u, keep).implementation
    if steps is not None:
        if weight_ih is not None:
            u, save_u = _projected(u, weight_ih, bias_ih)
            weight_ih = bias_ih = None
        if implementation != "cpu" or u.is_complex() or transformed() or torch.compiler.is_compiling():
            u, steps = u.expand(steps, *u.shape[1:]), None
    if implementation == "reference":
        return reference.recurrence(
            cell, u, R, state, bias=bias, params=params, batch_sizes=batch_sizes, reset=reset, reverse=reverse,
            grad_scale=grad_scale, weight_ih=weight_ih, bias_ih=bias_ih, zoneout=rates[:-1] or 0.0,
            dropout=rates[-1] if rates else 0.0, seed=seed, keep=keep,
        )  # fmt: skip
    if u.is_complex():
        if weight_ih is not None:
            u, save_u = _projected(u, weight_ih, bias_ih)
        u, save_u = columns_in_parts(u), _then(columns_in_parts, save_u)
        bias = None if bias is None else columns_in_parts(bias)
        h, (final,) = recurrence(
            COMPLEX[cell], u, rows_in_parts(R), (state_in_parts(state[0]),), bias=bias,
            params=[x.repeat_interleave(2) for x in params], batch_sizes=batch_sizes, reset=reset, reverse=reverse,
            grad_scale=grad_scale, save_gates=save_gates, save_u=save_u, keep=keep,
        )  # fmt: skip
        return of_parts(h), (of_parts(final),)
    if weight_ih is not None and (implementation == "cuda" or _projects_outside(u, weight_ih)):
        if bias is not None and bias_ih is not None and cell_of(cell).joint:
            # One bias is enough: its gradient is computed inside the loop; that of b_ih would need a pass over u.
            bias, bias_ih = bias + bias_ih, None
        u, save_u = _projected(u, weight_ih, bias_ih)
        weight_ih = bias_ih = None
    if save_gates is None:
        save_gates = u.is_cpu
    parts = _extension.bfloat16_parts() if implementation == "cpu" else 0
    if needs_derivatives(u, weight_ih, bias_ih, R, bias, *state, *params):
        keep_u, recompute_u, sources = save_u, None, ()
        if transformed():
            keep_u = True
        elif isinstance(save_u, Recomputed):
            keep_u = False
            if not torch.compiler.is_compiling():  # torch.compile does not support second derivatives
                recompute_u, sources = save_u
        training = torch.is_grad_enabled() or in_forward_mode()
        saving = save_gates if training else None, keep_u, recompute_u, steps, can_hand_out(u)
        h, *rest = differentiable(
            cell, reverse, saving, len(state), (parts, *rates), u, weight_ih, bias_ih, R, bias, batch_sizes, reset,
            grad_scale, seed, keep, *state, *params, *sources,
        )  # fmt: skip
    else:
        u = u if steps is None else u.expand(steps, *u.shape[1:])
        h, *rest = _operators.recurrence.default(
            cell, u, R, state, bias, params or None, batch_sizes, reset, reverse, False, False, weight_ih, bias_ih,
            *operator_rates(rates), seed, keep, parts,
        )  # fmt: skip
    return h, tuple(rest[: len(state)])


def _projects_outside(x: Tensor, weight_ih: Tensor) -> bool:
    """Whether F.linear computes u, on a CPU."""
    # In forward mode the kernel does, because the tangent of u is then one product instead of a sum of several.
    if not transformed() or in_forward_mode() or is_batched(weight_ih):
        return False
    return not is_batched(weight_ih, anywhere=True) or is_batched(x, anywhere=True)  # see over_heads


def _projected(x: Tensor, weight_ih: Tensor, bias_ih: Tensor | None) -> tuple[Tensor, Recomputed]:
    """u, and how second derivatives recompute it from the input."""
    return linear(x, weight_ih, bias_ih), Recomputed(linear, (x, weight_ih, bias_ih))


def _then(function: Callable[[Tensor], Tensor], save_u: bool | Recomputed) -> bool | Recomputed:
    """Turns the ``save_u`` for u into that for function(u)."""
    if not isinstance(save_u, Recomputed):
        return save_u
    return Recomputed(lambda *tensors: function(save_u.function(*tensors)), save_u.tensors)


def step(cell: str, x: Tensor, R: Tensor, state: Sequence[Tensor], bias: Tensor | None, weight_ih: Tensor,
         bias_ih: Tensor | None) -> list[Tensor] | None:  # fmt: skip
    """Computes one step without derivatives, for inference, if the CPU kernel can run it; otherwise returns None.

    Only the kernel checks the arguments; its checks keep memory safe and name the wrong argument.

    Args:
        x: (1, B, I). All other arguments are as in :func:`recurrence`; each tensor of ``state`` may be (1, B, H).

    Returns:
        A list of h (1, B, H) and the tensors of the final state, shaped like those of ``state``.
    """
    facts = KERNEL_CELLS.get(cell)
    if facts is None or facts["params"] or not x.is_cpu or forced() is not None:
        return None
    if transformed() or torch.jit.is_tracing():
        return None
    parts = _extension.bfloat16_parts()
    split = {"bfloat16_parts": parts} if parts else {}  # an argument with its default value takes a microsecond
    return _operators.recurrence.default(
        cell, x, R, state, bias, None, None, None, False, False, False, weight_ih, bias_ih, **split
    )  # fmt: skip
