"""Recurrences: one formula per cell and one loop over T time steps, for B sequences, H hidden units and G gates."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern.reference import _noise as noise

Product = Callable[..., Tensor]
"""``product(h, first=0, last=G)`` gives ``R h + b_hh`` for the gates first..last-1, (B, (last-first)*H)."""


class Cell(NamedTuple):
    """The formula of a cell and the facts that an engine needs."""

    step: Callable[..., tuple[Tensor, ...]]  # (u_t, product, state, *params) -> new state
    gates: int  # G, columns of u per hidden unit
    states: int  # 1: (h,); 2: (h, c)
    params: tuple[str, ...]  # names of the cell's own tensors, each (H,) but weight_hr (P, H), and others by ``rows``
    joint: bool  # the cell depends only on the sum of u and R h, so a bias may be added to either
    recurrent: int  # rows of R per hidden unit: G, or fewer where gates have no recurrent part
    rows: tuple[int, ...] = ()  # numbers of values per unit of ``params``; () if each has one
    normalised: bool = False  # values are normalized over all units; R then has no heads


CELLS: dict[str, Cell] = {}
OWN_CELLS: dict[str, Cell] = {}
"""Cells that :func:`rnnkern.cell` made."""


def cell_of(name: str) -> Cell:
    """The cell with this name; raises KeyError for an unknown name."""
    return CELLS[name] if name in CELLS else OWN_CELLS[name]


def _cell(*, gates: int = 1, states: int = 1, params: tuple[str, ...] = (), joint: bool = True):
    def register(step):
        CELLS[step.__name__] = Cell(step, gates, states, params, joint, gates)
        return step

    return register


@_cell()
def tanh(u, product, state):
    (h,) = state
    return (torch.tanh(u + product(h)),)


@_cell()
def relu(u, product, state):
    (h,) = state
    return (torch.relu(u + product(h)),)


@_cell()
def identity(u, product, state):
    (h,) = state
    return (u + product(h),)


@_cell()
def hardtanh(u, product, state):
    (h,) = state
    return (F.hardtanh(u + product(h)),)


@_cell(params=("modrelu_bias",))
def modrelu(u, product, state, modrelu_bias):
    """Arjovsky et al. 2016, eq. 8, for a real or a complex state; the bias is real."""
    (h,) = state
    return (_modrelu(u + product(h), modrelu_bias),)


def _modrelu(z, bias):
    if z.is_complex():  # because second derivatives of |z| are infinite at 0
        zero = z == 0
        z = torch.where(zero, 1, z)
        return torch.where(zero, 0, torch.sgn(z) * torch.relu(torch.abs(z) + bias))
    return torch.sign(z) * torch.relu(torch.abs(z) + bias)


@_cell(gates=2, params=("modrelu_bias",))
def complex_modrelu(u, product, state, modrelu_bias):
    """modReLU of complex numbers, stored as parts. A unit is a real or imaginary part; its two gates are that part and
    the other."""
    (h,) = state
    part, other = (u + product(h)).chunk(2, dim=-1)
    zero = (part == 0) & (other == 0)
    length = torch.hypot(torch.where(zero, 1, part), other)
    return (torch.where(zero, 0, part / length * torch.relu(length + modrelu_bias)),)


@_cell(params=("dt",))
def euler(u, product, state, dt):
    """One forward-Euler step of dh/dt = tanh(u + R h)."""
    (h,) = state
    return (h + dt * torch.tanh(u + product(h)),)


@_cell(gates=4, states=2)
def lstm(u, product, state):
    """Gates in PyTorch's order: input, forget, cell, output."""
    h, c = state
    i, f, g, o = (u + product(h)).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@_cell(gates=4, states=2, params=("weight_hr",))
def lstm_projected(u, product, state, weight_hr):
    """torch.nn.LSTM with ``proj_size`` P: h is (B, P), R (4*H, P), weight_hr (P, H)."""
    h, c = lstm(u, product, state)
    return F.linear(h, weight_hr), c


@_cell(gates=3, joint=False)
def gru(u, product, state):
    """Reset gate applied after the product, as in PyTorch and cuDNN. Gates: reset, update, new."""
    (h,) = state
    u_r, u_z, u_n = u.chunk(3, dim=-1)
    r_r, r_z, r_n = product(h).chunk(3, dim=-1)
    r = torch.sigmoid(u_r + r_r)
    z = torch.sigmoid(u_z + r_z)
    n = torch.tanh(u_n + r * r_n)
    return ((1 - z) * n + z * h,)


@_cell(gates=3, params=("modrelu_bias",), joint=False)
def goru(u, product, state, modrelu_bias):
    """Jing et al. 2019: a GRU whose new gate uses modReLU; the rows of R for this gate should be orthogonal."""
    (h,) = state
    u_r, u_z, u_n = u.chunk(3, dim=-1)
    r_r, r_z, r_n = product(h).chunk(3, dim=-1)
    r = torch.sigmoid(u_r + r_r)
    z = torch.sigmoid(u_z + r_z)
    return ((1 - z) * _modrelu(u_n + r * r_n, modrelu_bias) + z * h,)


@_cell(gates=3)
def gru_reset_before(u, product, state):
    """Cho et al. 2014: the rows of R for the new gate multiply the state after the reset gate."""
    (h,) = state
    u_r, u_z, u_n = u.chunk(3, dim=-1)
    r_r, r_z = product(h, 0, 2).chunk(2, dim=-1)
    r = torch.sigmoid(u_r + r_r)
    z = torch.sigmoid(u_z + r_z)
    n = torch.tanh(u_n + product(r * h, 2, 3))
    return ((1 - z) * n + z * h,)


class _ScaleGradient(torch.autograd.Function):
    """Returns h and multiplies its gradient by a constant."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h, scale):
        return h.view_as(h)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad):
        (scale,) = ctx.saved_tensors
        return grad * scale, None


def product_of(
    R: Tensor, bias: Tensor | None, gates: int, scale: Tensor | None, kept: Tensor | None, added: Tensor | None = None
) -> Product:
    """The :data:`Product` of a step. ``scale`` multiplies the gradient of h, ``kept`` (B, P) is the mask of dropout,
    and ``added`` (B, G*H) is added to R h."""
    hidden = (R.shape[0] if R.dim() == 2 else R.shape[0] * R.shape[1]) // max(gates, 1)

    def product(h: Tensor, first: int = 0, last: int = gates) -> Tensor:
        if scale is not None:
            h = _ScaleGradient.apply(h, scale)
        if kept is not None:
            h = h * kept[: h.shape[0]]
        rows = slice(first * hidden, last * hidden)
        b = None if bias is None else bias[rows]
        if added is not None:
            b = added[:, rows] if b is None else added[:, rows] + b
        if R.dim() == 2:
            return F.linear(h, R[rows]) + b if added is not None else F.linear(h, R[rows], b)
        heads, _, d = R.shape
        blocks = R.reshape(heads, gates, d, d)[:, first:last]
        r = torch.einsum("bkd,kged->bgke", h.unflatten(1, (heads, d)), blocks).flatten(1)
        return r if b is None else r + b

    return product


def recurrence(
    cell: str, u: Tensor, R: Tensor, state: Sequence[Tensor], *, save_gates: bool | None = None, save_u: bool = False,
    **options: Any,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Same arguments, shapes and results as :func:`rnnkern.ops.recurrence`, except ``steps``; here ``save_gates`` and
    ``save_u`` have no effect."""
    outputs, final = _outputs(cell, u, R, state, **options)
    h = joined(outputs, options.get("batch_sizes"), u, final[0].shape[1])
    return h, final if outputs else tuple(s.clone() for s in final)


def _outputs(cell, u, R, state, *, bias=None, params=(), batch_sizes=None, reset=None, reverse=False, grad_scale=None,
             weight_ih=None, bias_ih=None, zoneout=0.0, dropout=0.0, seed=None,
             keep=None) -> tuple[list[Tensor], tuple[Tensor, ...]]:  # fmt: skip
    """h of every step, and the final state. The options are those of :func:`rnnkern.ops.recurrence`."""
    if weight_ih is not None:
        u = F.linear(u, weight_ih, bias_ih)
    step, recurrent = cell_of(cell).step, cell_of(cell).recurrent
    inputs = rows_of(u, batch_sizes)
    state = tuple(state)
    outputs: list[Tensor] = [u] * len(inputs)
    kept = None if seed is None or dropout == 0 else noise.dropout_mask(seed, dropout, state[0])
    for t in reversed(range(len(inputs))) if reverse else range(len(inputs)):
        n = inputs[t].shape[0]  # rows from n on have finished or, in reverse, not started: their state is unchanged
        old = tuple(s[:n] for s in state)
        if reset is not None:
            old = tuple(torch.where(reset[t, :n, None], 0, s) for s in old)
        scale = None if grad_scale is None else noise.of_step(grad_scale, t, n)
        new = step(inputs[t], product_of(R, bias, recurrent, scale, kept), old, *params)
        new = noise.state_after(old, new, zoneout, seed, keep, t)
        outputs[t] = new[0]
        state = tuple(torch.cat([a, s[n:]]) if n < s.shape[0] else a for a, s in zip(new, state, strict=True))
    return outputs, state


def recurrence_adjoint(
    gradient: Callable[[Tensor], Tensor], cell: str, u: Tensor, R: Tensor, state: Sequence[Tensor], **options: Any
) -> Tensor:
    """Same arguments and result as :func:`rnnkern.ops._recurrence.recurrence_tangent.recurrence_adjoint`."""
    with torch.enable_grad():
        state = [s.detach().requires_grad_() for s in state]  # so that each h is part of a graph
        outputs, _ = _outputs(cell, u, R, state, **options)
        outputs = [h if h.requires_grad else h.requires_grad_() for h in outputs]  # a cell may ignore its state
        batch_sizes, columns = options.get("batch_sizes"), state[0].shape[1]
        h = joined(outputs, batch_sizes, u, columns)
        found = torch.autograd.grad(h, outputs, gradient(h.detach())) if outputs else []
    return joined(found, batch_sizes, u, columns)


def rows_of(x: Tensor, batch_sizes: Tensor | None) -> list[Tensor]:
    """For each step, the rows of the active sequences."""
    return list(x.unbind(0) if batch_sizes is None else x.split(batch_sizes.tolist()))


def joined(
    rows: Sequence[Tensor], batch_sizes: Tensor | None, x: Tensor, columns: int, dtype: torch.dtype | None = None
) -> Tensor:
    """The inverse of :func:`rows_of`; if there are no steps, an empty result shaped like ``x`` with these columns."""
    if not rows:
        return x.new_empty(*x.shape[:-1], columns, dtype=dtype)
    return torch.stack(rows) if batch_sizes is None else torch.cat(rows)
