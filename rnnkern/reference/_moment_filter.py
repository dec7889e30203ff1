"""The moment filter: one elementwise formula and one loop over T time steps, for B sequences and C channels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnkern.reference._linear_scan import joined, kept, rows_of


def moment_filter(
    u: Tensor,
    state: Sequence[Tensor] | None = None,
    *,
    mu: float = 0.0,
    s: float = 1.0,
    beta: float | None = None,
    eps: float = 1e-2,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
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
    return joined(found, u, batch_sizes), (v,) if beta is None else (v, q)
