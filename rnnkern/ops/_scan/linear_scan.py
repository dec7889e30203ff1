"""Linear scans: the public function, its checks and its choice of implementation."""

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops._scan import scan_autograd, scan_triton  # noqa: F401  (one registers kernels)
from rnnkern.ops.checks import check_like, check_rows, first_batch, shape_of
from rnnkern.ops.dispatch import Choice, choose
from rnnkern.ops.triton_launch import refusal as triton_refusal

OP = "linear_scan"
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, torch.float64, *HALVES, torch.complex64, torch.complex128)


def linear_scan(
    a: Tensor,
    x: Tensor,
    h0: Tensor | None = None,
    *,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    return_sequence: bool = True,
) -> tuple[Tensor | None, Tensor]:
    r"""Runs a diagonal linear recurrence over a sequence (Martin and Cundy 2018, eq. 5; with complex factors that are
    constant in time Orvieto et al. 2023, eq. 4).

    .. math::
        h_t = a_t \odot h_{t-1} + x_t

    T steps, B sequences, C channels; all elementwise.

    Args:
        a: (C,), the same at all steps, or like ``x``. A constant one is never spread over time.
        x: (T, B, C), or packed (sum of ``batch_sizes``, C) as in :class:`torch.nn.utils.rnn.PackedSequence`; float32,
            float64, complex64 or complex128, or bfloat16 or float16, for which all is computed in float32.
        h0: (B, C), the initial state; None for zero. Compiled code needs one beside ``batch_sizes``, which say B
            otherwise.
        batch_sizes: (T,) int64 on the CPU, never growing: how many sequences are alive at each step.
        reset: (T, B) bool, also when packed. Where true the state is zeroed before step t in processing order.
        reverse: run from each sequence's last step to its first.
        return_sequence: False for the final state alone: h is None, and without derivatives it is never written.

    Returns:
        h, like ``x``, and the final state, (B, C), taken at each sequence's own last step. Gradients flow from both to
        ``a``, ``x`` and ``h0``, and gradients of those; complex ones are PyTorch's. Beside ``a`` and ``h0``, h alone is
        kept for them.

    Raises:
        ValueError: a size, a rank or a value of ``batch_sizes`` is wrong, or :func:`rnnkern.use` forces an
            implementation that cannot serve the call.
        TypeError: an argument's type, dtype or device is wrong.
        NotImplementedError: in forward mode (``torch.func.jvp``), which the kernels have not.

    Equations: docs, "Linear scans"; :mod:`rnnkern.reference._linear_scan`.

    >>> h, last = linear_scan(torch.tensor([0.5]), torch.ones(3, 1, 1))
    >>> h.flatten().tolist(), last.tolist()
    ([1.0, 1.5, 1.75], [[1.75]])
    """
    _check(a, x, h0, batch_sizes, reset, reverse, return_sequence)
    if h0 is None and batch_sizes is not None:
        h0 = x.new_zeros(first_batch(batch_sizes), x.shape[-1])
    dtype, implementation = x.dtype, _choose(x).implementation
    if dtype in HALVES and implementation != "triton":
        a, x, h0 = (None if y is None else y.float() for y in (a, x, h0))
    if implementation == "reference":
        h, last = reference.linear_scan(a, x, h0, batch_sizes=batch_sizes, reset=reset, reverse=reverse)
    else:
        h, last = scan_autograd.linear_scan(a, x, h0, batch_sizes, reset, reverse, return_sequence)
    return h.to(dtype) if return_sequence else None, last.to(dtype)


def _choose(x: Tensor) -> Choice:
    """The written table."""
    cpu = _extension.reason if x.device.type == "cpu" else f"the tensors are on {x.device}"
    return choose(OP, {"cpu": cpu, "triton": triton_refusal(x.device)})


def _choose_checked(a, x, h0=None, *, batch_sizes=None, reset=None, reverse=False, return_sequence=True) -> Choice:
    _check(a, x, h0, batch_sizes, reset, reverse, return_sequence)
    return _choose(x)


linear_scan._choose = _choose_checked


def _check(a, x, h0, batch_sizes, reset, reverse, return_sequence) -> None:
    check_like(OP, "x", x, "x", x)
    if x.dtype not in DTYPES:
        raise TypeError(f"{OP}: `x` must be of a dtype of {DTYPES}, got {x.dtype}")
    check_like(OP, "a", a, "x", x)
    for name, flag in (("reverse", reverse), ("return_sequence", return_sequence)):
        if not isinstance(flag, bool):
            raise TypeError(f"{OP}: `{name}` must be a bool, got {flag!r}")
    if h0 is not None:
        check_like(OP, "h0", h0, "x", x)
    check_rows(OP, "x", x, {"h0": h0}, batch_sizes, reset)
    channels = x.shape[-1]
    if tuple(a.shape) not in ((channels,), tuple(x.shape)):
        raise ValueError(f"{OP}: `a` must be (C,) = ({channels},) or like `x` {shape_of(x)}, got {shape_of(a)}")
