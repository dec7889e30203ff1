"""Linear scans and moment filters: an elementwise formula and a loop over T steps, for B sequences and C channels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnkern.reference._recurrence import joined, rows_of


def linear_scan(
    a: Tensor, x: Tensor, state: Tensor | None = None, *, batch_sizes: Tensor | None = None,
    reset: Tensor | None = None, reverse: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Same arguments, shapes and results as :func:`rnnkern.ops.linear_scan`."""
    rows = rows_of(x, batch_sizes)
    factors = _factors(a, batch_sizes, len(rows))
    batch = rows[0].shape[0] if rows else x.shape[1] if x.dim() == 3 else 0
    state = x.new_zeros(batch, x.shape[-1]) if state is None else state
    found = {}
    for t in reversed(range(len(rows))) if reverse else range(len(rows)):
        alive = rows[t].shape[0]
        found[t] = factors[t] * kept(state[:alive], reset, t) + rows[t]
        state = torch.cat([found[t], state[alive:]])
    return _in_order(found, x, batch_sizes), state


def linear_scan_backward(
    grad_h: Tensor, grad_last: Tensor, a: Tensor, h0: Tensor, h: Tensor, *, batch_sizes: Tensor | None = None,
    reset: Tensor | None = None, reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of (x, h0, a) from the gradients of the results and from h; x is not needed. Differentiable."""
    rows, grads = rows_of(h, batch_sizes), rows_of(grad_h, batch_sizes)
    factors = _factors(a, batch_sizes, len(rows))
    order = list(reversed(range(len(rows))) if reverse else range(len(rows)))
    to_x, to_a, to_state = {}, {}, grad_last
    for t, before in reversed(list(zip(order, [None, *order], strict=False))):
        alive = rows[t].shape[0]
        of_before = h0[:0] if before is None else rows[before][:alive]
        state = torch.cat([of_before, h0[of_before.shape[0] : alive]])
        to_x[t] = grads[t] + to_state[:alive]
        to_a[t] = kept(state, reset, t).conj() * to_x[t]
        to_state = torch.cat([kept(factors[t].conj() * to_x[t], reset, t), to_state[alive:]])
    grad_a = _in_order(to_a, h, batch_sizes)
    return _in_order(to_x, h, batch_sizes), to_state, grad_a.flatten(0, -2).sum(0) if a.dim() == 1 else grad_a


def moment_filter(
    u: Tensor, state: Sequence[Tensor] | None = None, *, mu: float = 0.0, s: float = 1.0, beta: float | None = None,
    eps: float = 1e-2, batch_sizes: Tensor | None = None, reset: Tensor | None = None, reverse: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Same arguments, shapes and results as :func:`rnnkern.ops.moment_filter`, computed in the dtype of ``u``."""
    rows = rows_of(u, batch_sizes)
    batch = rows[0].shape[0] if rows else u.shape[1] if u.dim() == 3 else 0
    zeros = u.new_zeros(batch, u.shape[-1])
    v, q, *_ = (*state, zeros) if state else (zeros, zeros)
    found = {}
    for t in reversed(range(len(rows))) if reverse else range(len(rows)):
        alive = rows[t].shape[0]
        v_t = mu * kept(v[:alive], reset, t) + s * rows[t]
        q_t = 0.0 if beta is None else beta * kept(q[:alive], reset, t) + (1 - beta) * rows[t].square()
        found[t] = v_t if beta is None else v_t / (q_t + eps).sqrt()
        v, q = torch.cat([v_t, v[alive:]]), q if beta is None else torch.cat([q_t, q[alive:]])
    return _in_order(found, u, batch_sizes), (v,) if beta is None else (v, q)


def _factors(a: Tensor, batch_sizes: Tensor | None, steps: int) -> list[Tensor]:
    return [a] * steps if a.dim() == 1 else rows_of(a, batch_sizes)


def kept(state: Tensor, reset: Tensor | None, t: int) -> Tensor:
    return state if reset is None else state.masked_fill(reset[t, : state.shape[0]].unsqueeze(-1), 0)


def _in_order(found: dict[int, Tensor], like: Tensor, batch_sizes: Tensor | None) -> Tensor:
    return joined([found[t] for t in range(len(found))], batch_sizes, like, like.shape[-1])
