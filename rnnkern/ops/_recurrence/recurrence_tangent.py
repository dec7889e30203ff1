"""Forward mode of the recurrence, and gradients of h at every step: the functions, checks, choice of implementation."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops._recurrence.autograd import Recurrence, differentiable, operator_rates
from rnnkern.ops._recurrence.checks import COMPLEX, check, noise
from rnnkern.ops._recurrence.complex import columns_in_parts, of_parts, rows_in_parts, state_in_parts
from rnnkern.ops._recurrence.recurrence import choose_kernel
from rnnkern.ops._recurrence.tangent import NO_CUDA, RecurrenceTangent, propagate
from rnnkern.ops.checks import check_like, check_shape, shape_of
from rnnkern.ops.differentiable import needs_derivatives, transformed
from rnnkern.ops.dispatch import Choice, operator
from rnnkern.reference import Tangents
from rnnkern.reference._recurrence import cell_of
from rnnkern.reference._recurrence import recurrence_adjoint as by_the_reference

NO_ADJOINT_ON_CUDA = _extension.missing(
    "gradients with respect to h of every step have no CUDA kernel",
    "move the call to a CPU; short sequences are faster there than a loop over the steps on a GPU",
)


def _choose(cell: str, u: Tensor) -> Choice:
    return choose_kernel("recurrence_tangent", getattr(cell, "name", cell), u, NO_CUDA)


def _check(cell, u, R, state, tangents, u_tangent, r_tangent, bias_tangent, params_tangent, every, sequence, bias,
           params, batch_sizes, reset, reverse, weight_ih, bias_ih, keep=None, zoneout=0.0) -> None:  # fmt: skip
    """Raises the errors that :func:`recurrence_tangent` documents."""
    check(cell, u, R, state, bias, params, batch_sizes, reset, reverse, None, None, False, weight_ih, bias_ih,
          keep, zoneout)  # fmt: skip
    facts = cell_of(getattr(cell, "name", cell))
    what = "recurrence_tangent"
    if not isinstance(tangents, (tuple, list)):
        raise TypeError(f"{what}: `tangents` must be a tuple of tensors, got {type(tangents).__name__}")
    if len(tangents) != len(state):
        raise ValueError(f"{what}: `tangents` must have {len(state)} tensors like `state`, got {len(tangents)}")
    if params_tangent is not None and len(params_tangent) != len(params):
        raise ValueError(
            f"{what}: `params_tangent` must have {len(params)} tensors like `params`, got {len(params_tangent)}"
        )
    if not isinstance(tangents[0], Tensor) or tangents[0].dim() != 3:
        raise ValueError(f"{what}: `tangents[0]` must be (S, B, H), got {shape_of(tangents[0])}")
    count = tangents[0].shape[0]
    columns = u.shape[-1] if weight_ih is None else weight_ih.shape[0]
    recurrent = columns // facts.gates * facts.recurrent
    given = [
        *(
            (f"tangents[{k}]", d, f"state[{k}]", s, "(S, B, H)", s.shape)
            for k, (d, s) in enumerate(zip(tangents, state, strict=True))
        ),
        ("u_tangent", u_tangent, "u", u, "(S, T, B, G*H)", (*u.shape[:-1], columns)),
        ("r_tangent", r_tangent, "u", u, "(S, T, B, G*H)", (*u.shape[:-1], recurrent)),
        ("bias_tangent", bias_tangent, "u", u, "(S, G*H)", (recurrent,)),
        *(
            (f"params_tangent[{k}]", d, f"params[{k}]", p, "like `params` with a leading S,", p.shape)
            for k, (d, p) in enumerate(zip(params_tangent or (), params, strict=False))
        ),
    ]
    for name, tensor, like, of, wanted, shape in given:
        if tensor is not None:
            check_like(what, name, tensor, like, of)
            check_shape(what, name, tensor, wanted, (count, *shape))
    if r_tangent is not None and facts.joint:
        raise ValueError(
            f"{what}: `r_tangent` must be None for a cell that adds u and R h; add it to `u_tangent`, got a tensor"
        )
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(f"{what}: `every` must be an int, got {every!r}")
    if every < 0:
        raise ValueError(f"{what}: `every` must not be negative, got {every}")
    if not every:
        return
    size = sum(s.shape[1] for s in state)
    if u.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{what}: `every` needs float32 or float64, got {u.dtype}")
    if sequence:
        raise ValueError(f"{what}: `sequence` must be False if `every` is positive, got every={every}")
    if reset is not None:
        raise ValueError(f"{what}: `reset` must be None if `every` is positive, because it sets all tangents to zero")
    if count > size:
        raise ValueError(f"{what}: `tangents` must be at most {size}, the size of the state, with `every`, got {count}")


@operator(_check, lambda cell, u: _choose(cell, u))
def recurrence_tangent(
    cell: str,
    u: Tensor,
    R: Tensor,
    state: Sequence[Tensor],
    tangents: Sequence[Tensor],
    *,
    u_tangent: Tensor | None = None,
    r_tangent: Tensor | None = None,
    bias_tangent: Tensor | None = None,
    params_tangent: Sequence[Tensor | None] | None = None,
    every: int = 0,
    sequence: bool = False,
    bias: Tensor | None = None,
    params: Sequence[Tensor] = (),
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    weight_ih: Tensor | None = None,
    bias_ih: Tensor | None = None,
    zoneout: float | Sequence[float] = 0.0,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    keep: Tensor | None = None,
) -> Tangents:
    r"""Forward mode of :func:`recurrence`: propagates S tangents of each sequence through all steps.

    With the state :math:`x_t = F(x_{t-1}, u_t)` of all state tensors, the tangents are

    .. math::
        \dot x_t = \frac{\partial F}{\partial x} \dot x_{t-1} + \frac{\partial F}{\partial u} \dot u_t

    Unit vectors as tangents give the Jacobian of the final state; :func:`torch.func.jvp` of :func:`recurrence` is a
    call with S = 1. With ``every`` = k, the tangents of a sequence are orthonormalized after every k steps and after
    the last one, which gives Lyapunov exponents (Benettin et al. 1980).

    Args:
        cell, u, R, state: as in :func:`recurrence`.
        tangents: tensors (S, B, H), the tangents of ``state``. S may be 0.
        u_tangent: (S, T, B, G*H), or (S, rows, G*H) with ``batch_sizes``: tangents of u, after the projection by
            ``weight_ih``. Default: zeros.
        r_tangent: tangents that are added to R h, likewise. Only for cells in which u and R h enter separately
            (``gru``, ``goru`` and those with layer normalization, where they are added before the norm).
        bias_tangent: (S, G*H), tangents of ``bias``.
        params_tangent: tangents of ``params``, shaped like them with a leading S; None for zeros.
        every: orthonormalize after this many steps in processing order. 0: never.
        sequence: whether to return the tangents of h at every step; not together with ``every``.
        bias, params, batch_sizes, reset, reverse, weight_ih, bias_ih, zoneout, dropout, seed, keep: as in
            :func:`recurrence`. A reset sets the tangents to zero.

    Returns:
        A named tuple:

        - ``h``, ``state``: the results of :func:`recurrence`.
        - ``h_tangent``: (S, T, B, H), or (S, rows, H): the tangents of h at every step; (0,) without ``sequence``.
        - ``tangents``: tensors (S, B, H), those of the final state; orthonormal if ``every`` > 0.
        - ``log_r``: (ceil(T / every), B, S), float64: the logarithms of the diagonal of the QR decompositions' R, in
          nats; 0 after the end of a shorter sequence; (0,) if ``every`` is 0.
        - ``lost``: (B, S), int64: how often a tangent was linearly dependent on the previous ones, to rounding. Its
          ``log_r`` is then -inf, and it is replaced by a unit vector.

    float32, float64 and, without ``every``, bfloat16, float16 and complex numbers; 16-bit tangents are float32 between
    steps. The CPU has a kernel; on a GPU the reference runs. Derivatives of all results with respect to all tensors go
    through the reference.

    Raises:
        ValueError: as :func:`recurrence`; a tangent has the wrong shape; ``every`` is negative, or combined with
            ``reset``, ``sequence`` or S above the size of the state; ``r_tangent`` is given for another cell.
        TypeError: a tangent has the wrong type, dtype or device; ``every`` is not an int, or positive with a dtype
            other than float32 and float64.
        NotImplementedError: torch.compile traces a call that needs gradients.

    See also: :func:`rnnkern.reference.recurrence_tangent`, the same equations in plain PyTorch.

    >>> u, R, h0 = torch.zeros(4, 1, 3), torch.diag(torch.tensor([2.0, 1.0, 0.5])), torch.zeros(1, 3)
    >>> unit_vectors = torch.eye(3).unsqueeze(1)
    >>> recurrence_tangent("tanh", u, R, (h0,), (unit_vectors,), every=1).log_r.mean(0)  # logarithms of 2, 1 and 1/2
    tensor([[ 0.6931,  0.0000, -0.6931]], dtype=torch.float64)
    """
    cell = getattr(cell, "name", cell)
    _check(cell, u, R, state, tangents, u_tangent, r_tangent, bias_tangent, params_tangent, every, sequence, bias,
           params, batch_sizes, reset, reverse, weight_ih, bias_ih, keep, zoneout)  # fmt: skip
    rates, seed = noise(zoneout, dropout, seed, len(state), u)
    if _choose(cell, u).implementation == "reference":
        return reference.recurrence_tangent(
            cell, u, R, state, tangents, u_tangent=u_tangent, r_tangent=r_tangent, bias_tangent=bias_tangent,
            params_tangent=params_tangent, every=every, sequence=sequence, bias=bias, params=params,
            batch_sizes=batch_sizes, reset=reset, reverse=reverse, weight_ih=weight_ih, bias_ih=bias_ih,
            zoneout=rates[:-1] or 0.0, dropout=rates[-1] if rates else 0.0, seed=seed, keep=keep,
        )  # fmt: skip
    if weight_ih is not None:
        u = F.linear(u, weight_ih, bias_ih)
    facts = cell_of(cell)
    if bias_tangent is not None:
        added = bias_tangent[(slice(None), *[None] * (u.dim() - 1))]
        if facts.joint:
            u_tangent = added.expand(-1, *u.shape) if u_tangent is None else u_tangent + added
        else:
            rows = (-1, *u.shape[:-1], added.shape[-1])
            r_tangent = added.expand(rows) if r_tangent is None else r_tangent + added
    params_tangent = [None] * len(params) if params_tangent is None else params_tangent
    if u.is_complex():
        found = _propagate(
            COMPLEX[cell], columns_in_parts(u), rows_in_parts(R), (state_in_parts(state[0]),),
            (state_in_parts(tangents[0]),), None if u_tangent is None else columns_in_parts(u_tangent), None,
            [None if d is None else d.repeat_interleave(2, -1) for d in params_tangent], every, sequence,
            None if bias is None else columns_in_parts(bias), [x.repeat_interleave(2) for x in params], batch_sizes,
            reset, reverse, rates, seed, keep,
        )  # fmt: skip
        h_tangent = of_parts(found.h_tangent) if sequence else found.h_tangent.to(u.dtype)
        return found._replace(
            h=of_parts(found.h), state=tuple(map(of_parts, found.state)), h_tangent=h_tangent,
            tangents=tuple(map(of_parts, found.tangents)),
        )  # fmt: skip
    return _propagate(
        cell, u, R, state, tangents, u_tangent, r_tangent, params_tangent, every, sequence, bias, params,
        batch_sizes, reset, reverse, rates, seed, keep,
    )  # fmt: skip


def _propagate(cell, u, R, state, tangents, u_tangent, r_tangent, params_tangent, every, sequence, bias,
               params, batch_sizes, reset, reverse, rates, seed, keep) -> Tangents:  # fmt: skip
    arguments = u, None, None, R, bias, batch_sizes, reset
    directions = u_tangent, r_tangent
    forward, tangent = Recurrence.forward, RecurrenceTangent.forward
    if needs_derivatives(u, R, bias, *state, *params, *tangents, *directions, *params_tangent):
        if torch.compiler.is_dynamo_compiling() and not transformed():
            raise NotImplementedError(
                "recurrence_tangent: torch.compile does not support gradients through this call: make it outside of "
                "torch.compile, or under torch.no_grad()"
            )
        forward, tangent = differentiable, propagate
    states = len(state)
    how = (True, True, None, None, False), states, (_extension.bfloat16_parts(), *rates)
    h, *rest = forward(cell, reverse, *how, *arguments, None, seed, keep, *state, *params)
    h_tangent, *moved, log_r, lost = tangent(
        cell, reverse, states, rates, every, sequence, *arguments, seed, keep, *directions, *state, *params, *tangents,
        *params_tangent, h, *rest[states:],
    )  # fmt: skip
    return Tangents(h, tuple(rest[:states]), h_tangent, tuple(moved), log_r, lost)


def recurrence_adjoint(
    gradient: Callable[[Tensor], Tensor], cell: str, u: Tensor, R: Tensor, state: Sequence[Tensor], *,
    bias: Tensor | None = None, params: Sequence[Tensor] = (), batch_sizes: Tensor | None = None,
    reset: Tensor | None = None, reverse: bool = False, grad_scale: Tensor | None = None,
    weight_ih: Tensor | None = None, bias_ih: Tensor | None = None, zoneout: float | Sequence[float] = 0.0,
    dropout: float = 0.0, seed: Tensor | None = None, keep: Tensor | None = None,
) -> Tensor:  # fmt: skip
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
    if choose_kernel("recurrence_adjoint", cell, u, NO_ADJOINT_ON_CUDA).implementation == "reference":
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
