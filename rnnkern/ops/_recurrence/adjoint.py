"""Gradients of the recurrence with respect to h of every step."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops._recurrence.autograd import Recurrence, operator_rates
from rnnkern.ops._recurrence.checks import check, noise
from rnnkern.ops._recurrence.recurrence import choose_kernel
from rnnkern.reference._recurrence import recurrence_adjoint as by_the_reference

NO_CUDA = _extension.missing(
    "gradients with respect to h of every step have no CUDA kernel",
    "move the call to a CPU; short sequences are faster there than a loop over the steps on a GPU",
)


def recurrence_adjoint(
    gradient: Callable[[Tensor], Tensor],
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
    weight_ih: Tensor | None = None,
    bias_ih: Tensor | None = None,
    zoneout: float | Sequence[float] = 0.0,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    keep: Tensor | None = None,
) -> Tensor:
    r"""The gradient of a loss L with respect to h of every step, through all later steps.

    With :math:`g_t` the derivative of L by the output of step t alone, it is the whole adjoint

    .. math::
        a_t = g_t + \Bigl(\frac{\partial h_{t+1}}{\partial h_t}\Bigr)^\top a_{t+1} \quad
            (+ \text{ the path through the other states})

    On a CPU it is a result of the backward kernel, which adds one store per unit and step. On a GPU the reference
    computes it, step by step, with a warning.

    Args:
        gradient: is called once with h and returns :math:`g`, both (T, B, H), or (rows, H) if packed.
        cell, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, weight_ih, bias_ih, zoneout, dropout,
            seed, keep: as in :func:`rnnkern.ops.recurrence`; u is real.

    Returns:
        :math:`a`, shaped like h and in its dtype, without a derivative. The h of a step is that after zoneout. If h is
        projected, it is the projected one.

    Source: Kerg 2022, equations 2.2.8 to 2.2.10.
    """
    cell = getattr(cell, "name", cell)
    check(cell, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, None, False, weight_ih, bias_ih,
          keep, zoneout)  # fmt: skip
    rates, seed = noise(zoneout, dropout, seed, len(state), u)
    if choose_kernel("recurrence_adjoint", cell, u, NO_CUDA).implementation == "reference":
        return by_the_reference(
            gradient, cell, u, R, state, bias=bias, params=params, batch_sizes=batch_sizes, reset=reset,
            reverse=reverse, grad_scale=grad_scale, weight_ih=weight_ih, bias_ih=bias_ih, zoneout=rates[:-1] or 0.0,
            dropout=rates[-1] if rates else 0.0, seed=seed, keep=keep,
        )  # fmt: skip
    parts = _extension.bfloat16_parts()
    with torch.no_grad():
        h, *rest = Recurrence.forward(
            cell, reverse, (True, True, None, None, False), len(state), (parts, *rates), u, weight_ih, bias_ih, R, bias,
            batch_sizes, reset, None, seed, keep, *state, *params,
        )  # fmt: skip
        *_, found = torch.ops.rnnkern.recurrence_backward.default(
            cell, gradient(h), [], u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, h,
            rest[len(state) :], False, False, weight_ih, bias_ih, False, False, False, *operator_rates(rates), seed,
            keep, True, False, parts,
        )  # fmt: skip
    return found
