"""Linear scans: the public function, its checks, its choice of implementation and its derivatives."""

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern.ops._scan import scan_triton  # noqa: F401  (registers kernels)
from rnnkern.ops.checks import FLOATS, check_dtype, check_flags, check_like, check_rows, first_batch, shape_of
from rnnkern.ops.differentiable import check_lengths_are_there, differentiable
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, operator
from rnnkern.ops.folds import over_channels
from rnnkern.ops.triton_launch import refusal as triton_refusal

OP = "linear_scan"
COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
DTYPES = (*FLOATS, *COMPLEX.values())


def _check(a, x, state, batch_sizes, reset, reverse, return_sequence) -> None:
    for name, given in (("x", x), ("a", a)):
        check_dtype(OP, name, given, DTYPES)
    dtype = _promoted(a, x)
    check_like(OP, "a", a, "x", x, a.dtype if dtype is not None else None)
    check_flags(OP, reverse=reverse, return_sequence=return_sequence)
    if state is not None:
        check_like(OP, "state", state, "x", x, dtype)
    check_rows(OP, "x", x, {"state": state}, batch_sizes, reset)
    channels = x.shape[-1]
    if tuple(a.shape) != (channels,):
        sizes = zip(a.shape, x.shape, strict=False)
        if a.dim() != x.dim() or a.shape[-1] != channels or any(n not in (1, m) for n, m in sizes):
            wanted = f"(C,) = ({channels},) or broadcast to the shape of `x`, {shape_of(x)}"
            raise ValueError(f"{OP}: `a` must be {wanted}, got {shape_of(a)}")


def _promoted(a: Tensor, x: Tensor) -> torch.dtype | None:
    """The dtype of the result, or None if the dtypes of ``a`` and ``x`` are incompatible."""
    pair = {a.dtype, x.dtype}
    if len(pair) == 1:
        return x.dtype
    return next((dtype for real, dtype in COMPLEX.items() if pair == {real, dtype}), None)


def _choose(x: Tensor) -> Choice:
    return choose(OP, {"cpu": cpu_refusal(x), "triton": triton_refusal(x.device)})


@operator(_check, _choose)
def linear_scan(
    a: Tensor,
    x: Tensor,
    state: Tensor | None = None,
    *,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    return_sequence: bool = True,
) -> tuple[Tensor | None, Tensor]:
    r"""Runs a diagonal linear recurrence over a sequence (Martin and Cundy 2018, eq. 5; with complex, time-invariant
    factors: Orvieto et al. 2023, eq. 4).

    .. math::
        h_t = a_t \odot h_{t-1} + x_t

    All operations are elementwise. T is the number of time steps, B the batch size and C the number of channels.

    Args:
        a: (C,) for factors that are constant in time, or a shape that broadcasts to that of ``x``, such as (T, 1, C).
            (C,) factors are not expanded over time.
        x: (T, B, C), or packed (sum of ``batch_sizes``, C) as in :class:`torch.nn.utils.rnn.PackedSequence`; float32,
            float64, complex64 or complex128, or bfloat16 or float16, which are computed in float32. One of ``a`` and
            ``x`` may be complex and the other real, with the same precision.
        state: :math:`h_0`, (B, C), with the dtype of the result; None means zeros. Compiled code with ``batch_sizes``
            needs a state, because it cannot read B from ``batch_sizes``.
        batch_sizes, reset, reverse: as in :func:`rnnkern.ops.recurrence`.
        return_sequence: False returns None for h, so that only the final state is returned. If no gradients are needed,
            h is then not written to memory.

    Returns:
        h, shaped like ``x`` and complex if ``a`` or ``x`` is complex, and the final state, (B, C), taken at the last
        step of each sequence. Gradients flow from both to ``a``, ``x`` and ``state``, and second derivatives are
        supported. Complex gradients follow PyTorch's convention. Apart from ``a`` and ``state``, only h is saved for
        the backward pass, so it must not be changed in place before.

    Raises:
        ValueError: a shape or a value of ``batch_sizes`` is wrong, or :func:`rnnkern.use` forces an implementation that
            cannot run the call.
        TypeError: an argument has the wrong type, dtype or device.
        NotImplementedError: forward-mode AD (``torch.func.jvp``) is not supported.

    See also: :func:`rnnkern.reference.linear_scan`, the same equations in plain PyTorch.

    >>> h, last = linear_scan(torch.tensor([0.5]), torch.ones(3, 1, 1))
    >>> h.flatten().tolist(), last.tolist()
    ([1.0, 1.5, 1.75], [[1.75]])
    """
    _check(a, x, state, batch_sizes, reset, reverse, return_sequence)
    dtype = _promoted(a, x)
    if state is None and batch_sizes is not None:
        state = x.new_zeros(first_batch(batch_sizes), x.shape[-1], dtype=dtype)
    implementation = _choose(x).implementation
    arithmetic = dtype if implementation == "triton" else torch.promote_types(dtype, torch.float32)
    a, x, state = (None if y is None else y.to(arithmetic) for y in (a, x, state))
    a = a if a.dim() == 1 else a.expand(x.shape)
    if implementation == "reference":
        h, last = reference.linear_scan(a, x, state, batch_sizes=batch_sizes, reset=reset, reverse=reverse)
    else:
        *h, last = _linear_scan(a, x, state, batch_sizes, reset, reverse, return_sequence)
        h = h[0] if return_sequence else None
    return h.to(dtype) if return_sequence else None, last.to(dtype)


# ---- derivatives


def _forward(training, a, x, state, batch_sizes, reset, reverse, sequence):
    return torch.ops.rnnkern.linear_scan.default(a, x, state, batch_sizes, reset, reverse, sequence or training)


def _reference_backward(grad_h, grad_last, a, state, h, batch_sizes, reset, reverse, needs_a):
    check_lengths_are_there(OP, batch_sizes)
    zero = h.new_zeros(h.shape[1:] if state is None else state.shape)
    return reference.linear_scan_backward(
        torch.zeros_like(h) if grad_h is None else grad_h, zero if grad_last is None else grad_last, a,
        zero if state is None else state, h, batch_sizes=batch_sizes, reset=reset, reverse=reverse,
    )  # fmt: skip


def _shapes(a, x, state, batch_sizes, reset, reverse, sequence):
    return [*([x.new_empty(x.shape)] if sequence else []), x.new_empty(x.shape[1:] if state is None else state.shape)]


def _backward_shapes(grad_h, grad_last, a, state, h, batch_sizes, reset, reverse, needs_a):
    before = h.new_empty(h.shape[1:] if state is None else state.shape)
    return [h.new_empty(h.shape), before, *([a.new_empty(a.shape)] if needs_a else [])]


_linear_scan = differentiable(
    "linear_scan",
    forward=_forward,
    results=2,
    saves=lambda args, outputs: (args[0], args[2], outputs[0], *args[3:6]),
    kept=(0,),
    pooled=True,
    gradients=(1, 2, 0),
    optional=(0,),
    reference_backward=_reference_backward,
    leaves=range(5),
    fold=over_channels,
    shapes=_shapes,
    backward_shapes=_backward_shapes,
)
