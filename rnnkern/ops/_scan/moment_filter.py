"""Moment filters: the public function, its checks, its choice of implementation and its derivatives."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern.ops._scan import filter_triton  # noqa: F401  (registers kernels)
from rnnkern.ops.checks import check_dtype, check_flags, check_like, check_number, check_rows, first_batch
from rnnkern.ops.differentiable import check_lengths_are_there, differentiable
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, operator
from rnnkern.ops.folds import over_channels
from rnnkern.ops.triton_launch import refusal as triton_refusal

OP = "moment_filter"
EPS = 1e-2
"""The epsilon added to q under the root. After an input of only zeros, the slope at u = 0 is s / sqrt(EPS) = 10 s."""
EVERY = 16
"""Number of steps between saved states (csrc/scan/cpu/problem.h has the maximum); the backward pass recomputes v and q
between them."""


def _check(u, state, mu, s, beta, eps, batch_sizes, reset, reverse) -> None:
    check_dtype(OP, "u", u)
    check_flags(OP, reverse=reverse)
    for name, number in (("mu", mu), ("s", s), ("beta", beta), ("eps", eps)):
        if name != "beta" or number is not None:
            check_number(OP, name, number)
    if beta is not None and not 0 <= beta <= 1:
        raise ValueError(f"{OP}: `beta` must be in [0, 1], got {beta}")
    if eps <= 0:
        raise ValueError(f"{OP}: `eps` must be positive, got {eps}")
    names = ("v",) if beta is None else ("v", "q")
    if state is not None and (not isinstance(state, (tuple, list)) or len(state) != len(names)):
        got = f"{len(state)} items" if isinstance(state, (tuple, list)) else type(state).__name__
        raise TypeError(f"{OP}: `state` must be ({', '.join(names)}), a tuple of tensors, got {got}")
    states = {f"state[{k}]": part for k, part in enumerate(state or [None])}
    for name, part in states.items():
        if part is not None:
            check_like(OP, name, part, "u", u, _wide(u))
    check_rows(OP, "u", u, states, batch_sizes, reset)


def _wide(u: Tensor) -> torch.dtype:
    return torch.promote_types(u.dtype, torch.float32)


def _choose(u: Tensor) -> Choice:
    return choose(OP, {"cpu": cpu_refusal(u), "triton": triton_refusal(u.device)})


@operator(_check, _choose)
def moment_filter(
    u: Tensor,
    state: Sequence[Tensor] | None = None,
    *,
    mu: float = 0.0,
    s: float = 1.0,
    beta: float | None = None,
    eps: float = EPS,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    r"""Filters a sequence with running moments, as an optimizer filters gradients (Nguyen et al. 2020, eq. 8, 14 and
    16).

    .. math::
        v_t &= \mu v_{t-1} + s \, u_t \\
        q_t &= \beta q_{t-1} + (1 - \beta) \, u_t^2 \\
        y_t &= v_t / \sqrt{q_t + \epsilon}

    All operations are elementwise. T is the number of time steps, B the batch size and C the number of channels.
    Without ``beta`` there is no q, and y equals v.

    Args:
        u: (T, B, C), or packed (sum of ``batch_sizes``, C) as in :class:`torch.nn.utils.rnn.PackedSequence`; float32 or
            float64, or bfloat16 or float16, which are computed in float32.
        state: the moments before the first step: ``(v,)``, or with ``beta`` ``(v, q)``, each (B, C); float32 if ``u``
            has a 16-bit dtype. q must not be negative. None means zeros. Compiled code with ``batch_sizes`` needs a
            state, because it cannot read B from ``batch_sizes``.
        mu, s: the decay factor of the first moment, and the step size. These and the next two arguments are numbers; no
            gradient flows to them.
        beta: decay factor of the second moment, in [0, 1]; None for momentum only.
        eps: :math:`\epsilon`, positive.
        batch_sizes, reset, reverse: as in :func:`rnnkern.ops.recurrence`.

    Returns:
        y, shaped like ``u``, and the final state, ``(v,)`` or ``(v, q)``, taken at the last step of each sequence.
        Gradients flow from all of them to ``u`` and ``state``, and second derivatives are supported. With ``beta``, u
        and every sixteenth v and q are saved for the backward pass; without ``beta``, nothing is saved.

    Raises:
        ValueError: a shape or a value is wrong, or :func:`rnnkern.use` forces an implementation that cannot run the
            call.
        TypeError: an argument has the wrong type, dtype or device.
        NotImplementedError: forward-mode AD (``torch.func.jvp``) is not supported.

    See also: :func:`rnnkern.reference.moment_filter`, the same equations in plain PyTorch.

    >>> y, (v,) = moment_filter(torch.ones(3, 1, 1), mu=0.5, s=1.0)
    >>> y.flatten().tolist(), v.tolist()
    ([1.0, 1.5, 1.75], [[1.75]])
    """
    _check(u, state, mu, s, beta, eps, batch_sizes, reset, reverse)
    if state is None and batch_sizes is not None:
        zeros = u.new_zeros(first_batch(batch_sizes), u.shape[-1], dtype=_wide(u))
        state = (zeros,) if beta is None else (zeros, zeros)
    rule = float(mu), float(s), None if beta is None else float(beta), float(eps)
    if _choose(u).implementation == "reference":
        named = dict(zip(("mu", "s", "beta", "eps"), rule, strict=True))
        layout = {"batch_sizes": batch_sizes, "reset": reset, "reverse": reverse}
        y, state = reference.moment_filter(u.to(_wide(u)), state, **named, **layout)
        return y.to(u.dtype), state
    v0, q0, *_ = (*(state or ()), None, None)
    y, *moments = _moment_filter(u, v0, q0, batch_sizes, reset, reverse, *rule)
    return y, tuple(moments[: 1 if beta is None else 2])


# ---- derivatives


def _forward(training, u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps):
    every = EVERY if training and beta is not None else 0
    return torch.ops.rnnkern.moment_filter.default(u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps, every)


def _saves(args, outputs):
    u, v0, q0, *rest = args
    kept = outputs[3] if len(outputs) == 4 else None
    like = u.shape, u.dtype
    return None if kept is None else u, v0, q0, kept, *rest, EVERY, like


def _backward_arguments(grads, saved, needs):
    u, *rest, (shape, dtype) = saved
    if u is None:  # momentum without beta needs only the sizes of u
        u = grads[1].new_zeros(shape, dtype=dtype) if grads[0] is None else grads[0].detach()
    return *grads, u, *rest


def _reference_backward(
    grad_y, grad_v, grad_q, u, v0, q0, kept, batch_sizes, reset, reverse, mu, s, beta, eps, every
):  # fmt: skip
    check_lengths_are_there(OP, batch_sizes)
    wide = u.to(_wide(u))
    zero = wide.new_zeros(u.shape[1:] if v0 is None else v0.shape)
    count = 1 if beta is None else 2
    state = tuple(zero if x is None else x for x in (v0, q0)[:count])

    def forward(u, state):
        return reference.moment_filter(
            u, state, mu=mu, s=s, beta=beta, eps=eps, batch_sizes=batch_sizes, reset=reset, reverse=reverse
        )

    grads = [zero if g is None else g for g in (grad_v, grad_q)[:count]]
    grad_u, grad_state = torch.func.vjp(forward, wide, state)[1](
        (torch.zeros_like(wide) if grad_y is None else grad_y.to(wide), tuple(grads))
    )
    return grad_u.to(u.dtype), *grad_state


def _states(u, v0, beta):
    shape = u.shape[1:] if v0 is None else v0.shape
    return [u.new_empty(shape, dtype=_wide(u)) for _ in range(1 if beta is None else 2)]


def _shapes(u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps, every):
    v, *q = _states(u, v0, beta)
    results = [u.new_empty(u.shape), v, *q]
    if q and every:
        steps = u.shape[0] if batch_sizes is None else batch_sizes.shape[0]
        results.append(v.new_empty(torch.sym_max((steps - 1) // every, 0), 2, *v.shape))
    return results


def _backward_shapes(grad_y, grad_v, grad_q, u, v0, q0, kept, batch_sizes, reset, reverse, mu, s, beta, eps, every):
    return [u.new_empty(u.shape), *_states(u, v0, beta)]


_moment_filter = differentiable(
    "moment_filter",
    forward=_forward,
    results=3,
    saves=_saves,
    gradients=(0, 1, 2),
    reference_backward=_reference_backward,
    leaves=range(6),
    fold=over_channels,
    backward_arguments=_backward_arguments,
    shapes=_shapes,
    backward_shapes=_backward_shapes,
)
