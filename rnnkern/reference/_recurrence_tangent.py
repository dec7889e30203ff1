"""Forward mode of the recurrence: S tangents of each sequence, propagated through T time steps."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern.reference import _noise as noise
from rnnkern.reference._recurrence import cell_of, joined, product_of, rows_of


class Tangents(NamedTuple):
    """The results of :func:`rnnkern.ops.recurrence_tangent`, which describes them."""

    h: Tensor
    state: tuple[Tensor, ...]
    h_tangent: Tensor
    tangents: tuple[Tensor, ...]
    log_r: Tensor
    lost: Tensor


def recurrence_tangent(
    cell: str, u: Tensor, R: Tensor, state: Sequence[Tensor], tangents: Sequence[Tensor], *,
    u_tangent: Tensor | None = None, r_tangent: Tensor | None = None, bias_tangent: Tensor | None = None,
    params_tangent: Sequence[Tensor] | None = None, every: int = 0, sequence: bool = False, bias: Tensor | None = None,
    params: Sequence[Tensor] = (), batch_sizes: Tensor | None = None, reset: Tensor | None = None,
    reverse: bool = False, weight_ih: Tensor | None = None, bias_ih: Tensor | None = None,
    zoneout: float | Sequence[float] = 0.0, dropout: float = 0.0, seed: Tensor | None = None,
    keep: Tensor | None = None,
) -> Tangents:  # fmt: skip
    """Same arguments, shapes and results as :func:`rnnkern.ops.recurrence_tangent`."""
    if weight_ih is not None:
        u = F.linear(u, weight_ih, bias_ih)
    cell_facts = cell_of(cell)
    packed, inputs = batch_sizes is not None, rows_of(u, batch_sizes)
    sizes = [x.shape[0] for x in inputs]
    state, dots = tuple(state), tuple(tangents)
    count, batch = dots[0].shape[:2]
    r_rows = cell_facts.recurrent * state[-1].shape[1]
    bias = u.new_zeros(r_rows) if bias is None else bias
    forcing = [_steps(x, sizes, packed) for x in (u_tangent, r_tangent)]
    outputs, output_dots = [u] * len(sizes), [u] * len(sizes)
    blocks = -(-len(sizes) // every) if every else 0
    log_r = torch.zeros(blocks, *((batch, count) if every else ()), dtype=torch.float64, device=u.device)
    lost = torch.zeros(batch, count, dtype=torch.int64, device=u.device)
    kept = None if seed is None or dropout == 0 else noise.dropout_mask(seed, dropout, state[0])
    stepped = 0  # sequences with a step since the last orthonormalization
    for k, t in enumerate(reversed(range(len(sizes))) if reverse else range(len(sizes))):
        n = sizes[t]
        old, old_dots = tuple(s[:n] for s in state), tuple(d[:, :n] for d in dots)
        if reset is not None:
            old, old_dots = (tuple(torch.where(reset[t, :n, None], 0, x) for x in xs) for xs in (old, old_dots))

        def step(u_t, added, bias, *rest, t=t):
            params, old = rest[: len(cell_facts.params)], rest[len(cell_facts.params) :]
            new = cell_facts.step(u_t, product_of(R, bias, cell_facts.recurrent, None, kept, added), old, *params)
            return noise.state_after(old, new, zoneout, seed, keep, t)

        primals = inputs[t], u.new_zeros(n, r_rows), bias, *params, *old
        new = step(*primals)
        params_dots = [None] * len(params) if params_tangent is None else params_tangent
        directions = forcing[0][t], forcing[1][t], bias_tangent, *params_dots, *old_dots
        new_dots = _along(step, primals, directions, count) if count else old_dots
        outputs[t], output_dots[t] = new[0], new_dots[0]
        state = tuple(torch.cat([a, x[n:]]) for a, x in zip(new, state, strict=True))
        dots = tuple(torch.cat([a, x[:, n:]], 1) for a, x in zip(new_dots, dots, strict=True))
        stepped = max(stepped, n)
        if every and ((k + 1) % every == 0 or k + 1 == len(sizes)):
            made, logs, dependent = orthonormalized([x[:, :stepped] for x in dots])
            dots = tuple(torch.cat([a, x[:, stepped:]], 1) for a, x in zip(made, dots, strict=True))
            log_r[k // every, :stepped] = logs
            lost[:stepped] += dependent
            stepped = 0
    width = state[0].shape[1]
    h, h_dots = joined(outputs, batch_sizes, u, width), u.new_empty(0)
    if sequence:
        join = torch.cat if packed else torch.stack
        h_dots = join(output_dots, 1) if outputs else u.new_empty(count, *u.shape[:-1], width)
    return Tangents(h, state, h_dots, dots, log_r, lost)


def _steps(tangent: Tensor | None, sizes: list[int], packed: bool) -> Sequence[Tensor | None]:
    """The part of a tangent (S, T, B, columns) or (S, rows, columns) that belongs to each step."""
    if tangent is None:
        return [None] * len(sizes)
    return tangent.split(sizes, 1) if packed else tangent.unbind(1)


def _along(function, primals, directions, count):
    """The derivatives of a function along ``count`` directions; None stands for zeros."""
    given = [x.new_zeros(count, *x.shape) if d is None else d for x, d in zip(primals, directions, strict=True)]
    return torch.func.vmap(lambda *d: torch.func.jvp(function, primals, d)[1])(*given)


def orthonormalized(tangents: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Gram-Schmidt, twice, of the S tangents of each sequence over all tensors of the state.

    A tangent that is linearly dependent on the previous ones, to rounding, is replaced by the first unit vector that
    is not in the span of all others.

    Args:
        tangents: tensors (S, B, H).

    Returns:
        The orthonormal tangents; (B, S), float64, the logarithms of the lengths after projection, -inf for a dependent
        tangent; (B, S), True for a dependent tangent.
    """
    A = torch.cat(tuple(tangents), -1).transpose(0, 1)
    batch, count, n = A.shape
    Q, lengths = torch.zeros_like(A), A.new_zeros(batch, count)

    def rejected(a, Q):
        for _ in range(2):
            a = a - (Q.mT @ (Q @ a.unsqueeze(-1))).squeeze(-1)
        return a

    for s in range(count):
        a = rejected(A[:, s], Q)
        length = a.norm(dim=-1)
        dependent = length <= 8 * n * torch.finfo(A.dtype).eps * A[:, s].norm(dim=-1)
        Q[:, s] = torch.where(dependent[:, None], 0, a / length[:, None])
        lengths[:, s] = torch.where(dependent, 0, length)
    for b, s in (lengths == 0).nonzero().tolist():
        uncovered = 1 - Q[b].square().sum(0)
        unit = torch.zeros_like(Q[b, s])
        unit[(uncovered > 0.5 / n).nonzero()[0]] = 1
        a = rejected(unit, Q[b])
        Q[b, s] = a / a.norm()
    parts = Q.transpose(0, 1).split([x.shape[-1] for x in tangents], -1)
    return parts, lengths.double().log(), lengths == 0
