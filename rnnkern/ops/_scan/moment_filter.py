"""Moment filters: the public function, its checks and its choice of implementation."""

import math

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops._scan import filter_autograd, filter_triton  # noqa: F401  (one registers kernels)
from rnnkern.ops.checks import check_dtype, check_like, check_rows, first_batch
from rnnkern.ops.dispatch import Choice, choose
from rnnkern.ops.triton_launch import refusal as triton_refusal

OP = "moment_filter"
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, torch.float64, *HALVES)
EPS = 1e-2
"""Beside q under the root. The slope at u = 0 is s / sqrt(EPS), 10 s, after nothing but zeros."""


def moment_filter(
    u: Tensor,
    v0: Tensor | None = None,
    q0: Tensor | None = None,
    *,
    mu: float = 0.0,
    s: float = 1.0,
    beta: float | None = None,
    eps: float = EPS,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""Filters a sequence by running moments, as an optimiser does gradients (Nguyen et al. 2020, eq. 8, 14 and 16).

    .. math::
        v_t &= \mu v_{t-1} + s \, u_t \\
        q_t &= \beta q_{t-1} + (1 - \beta) \, u_t^2 \\
        y_t &= v_t / \sqrt{q_t + \epsilon}

    T steps, B sequences, C channels; all elementwise. Without ``beta`` there is no q, and y is v.

    Args:
        u: (T, B, C), or packed (sum of ``batch_sizes``, C) as in :class:`torch.nn.utils.rnn.PackedSequence`; float32 or
            float64, or bfloat16 or float16, for which all is computed in float32.
        v0: (B, C), the first moment before the first step, float32 where ``u`` has 16 bits; None for zero. Compiled
            code needs one beside ``batch_sizes``, which say B otherwise.
        q0: like ``v0``, the second moment, which must not be negative; only with ``beta``.
        mu, s: the factor of the first moment, and the step. Numbers, as are the next two: no gradient flows to them.
        beta: in [0, 1]; None for momentum alone.
        eps: positive.
        batch_sizes: (T,) int64 on the CPU, never growing: how many sequences are alive at each step.
        reset: (T, B) bool, also when packed. Where true v and q are zeroed before step t in processing order.
        reverse: run from each sequence's last step to its first.

    Returns:
        y, like ``u``, and v and q, (B, C), taken at each sequence's own last step; q is None without ``beta``.
        Gradients flow from all to ``u``, ``v0`` and ``q0``, and gradients of those. With ``beta`` u is kept for them,
        and v and q at each sixteenth step; without, nothing.

    Raises:
        ValueError: a size, a rank or a value is wrong, or :func:`rnnkern.use` forces an implementation that cannot
            serve the call.
        TypeError: an argument's type, dtype or device is wrong.
        NotImplementedError: in forward mode (``torch.func.jvp``), which the kernels have not.

    Equations: docs, "Linear scans"; :mod:`rnnkern.reference._moment_filter`.

    >>> y, v, q = moment_filter(torch.ones(3, 1, 1), mu=0.5, s=1.0)
    >>> y.flatten().tolist(), v.tolist(), q
    ([1.0, 1.5, 1.75], [[1.75]], None)
    """
    _check(u, v0, q0, mu, s, beta, eps, batch_sizes, reset, reverse)
    wide = _wide(u)
    if v0 is None and batch_sizes is not None:
        v0 = u.new_zeros(first_batch(batch_sizes), u.shape[-1], dtype=wide)
    mu, s, eps = float(mu), float(s), float(eps)
    beta = None if beta is None else float(beta)
    if _choose(u).implementation == "reference":
        rule = {"mu": mu, "s": s, "beta": beta, "eps": eps}
        layout = {"batch_sizes": batch_sizes, "reset": reset, "reverse": reverse}
        y, v, q = reference.moment_filter(u.to(wide), v0, q0, **rule, **layout)
        return y.to(u.dtype), v, q
    return filter_autograd.moment_filter(u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps)


def _wide(u: Tensor) -> torch.dtype:
    return torch.float32 if u.dtype in HALVES else u.dtype


def _choose(u: Tensor) -> Choice:
    """The written table."""
    cpu = _extension.reason if u.device.type == "cpu" else f"the tensors are on {u.device}"
    return choose(OP, {"cpu": cpu, "triton": triton_refusal(u.device)})


def _choose_checked(
    u, v0=None, q0=None, *, mu=0.0, s=1.0, beta=None, eps=EPS, batch_sizes=None, reset=None, reverse=False
) -> Choice:
    _check(u, v0, q0, mu, s, beta, eps, batch_sizes, reset, reverse)
    return _choose(u)


moment_filter._choose = _choose_checked


def _check(u, v0, q0, mu, s, beta, eps, batch_sizes, reset, reverse) -> None:
    check_dtype(OP, "u", u, DTYPES)
    if not isinstance(reverse, bool):
        raise TypeError(f"{OP}: `reverse` must be a bool, got {reverse!r}")
    for name, number in (("mu", mu), ("s", s), ("beta", beta), ("eps", eps)):
        if name == "beta" and number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise TypeError(f"{OP}: `{name}` must be a number, got {number!r}")
        if not math.isfinite(number):
            raise ValueError(f"{OP}: `{name}` must be finite, got {number}")
    if beta is not None and not 0 <= beta <= 1:
        raise ValueError(f"{OP}: `beta` must be in [0, 1], got {beta}")
    if eps <= 0:
        raise ValueError(f"{OP}: `eps` must be positive, got {eps}")
    if beta is None and q0 is not None:
        raise ValueError(f"{OP}: `q0` must be None without `beta`, got a tensor")
    states = {"v0": v0, "q0": q0}
    for name, state in states.items():
        if state is not None:
            check_like(OP, name, state, "u", u, _wide(u))
    check_rows(OP, "u", u, states, batch_sizes, reset)
