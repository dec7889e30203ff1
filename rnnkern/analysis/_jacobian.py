"""The Jacobian of one step of a recurrent cell."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rnnkern.ops import recurrence_tangent
from rnnkern.ops._recurrence.checks import check
from rnnkern.reference._recurrence import Product, cell_of, product_of

DTYPES = (torch.float32, torch.float64)


def jacobian(
    cell: str, u: Tensor, R: Tensor, state: Sequence[Tensor], *, bias: Tensor | None = None,
    params: Sequence[Tensor] = (),
) -> Tensor:  # fmt: skip
    r"""Computes the derivative of a cell's next state with respect to its state.

    For the Elman cells and the cells ``euler``, ``lstm``, ``gru``, ``gru_reset_before`` and ``goru`` these are closed
    forms. With :math:`D(v)` the diagonal matrix of v, R and b split by gates, and the derivatives :math:`\sigma' =
    \sigma (1 - \sigma)`:

    .. math::
        J &= D(1 - h'^2) R & \text{tanh} \\
        J &= I + D\bigl(dt (1 - t^2)\bigr) R, \quad t = \tanh(u + R h + b) & \text{euler} \\
        J &= D(z) + D\bigl((1-z)(1-n^2)\bigr) \bigl(D(r) R_n + D(w r') R_r\bigr) + D\bigl((h-n) z'\bigr) R_z,
            \quad w = R_n h + b_n & \text{gru} \\
        J &= D(z) + D\bigl((1-z)(1-n^2)\bigr) R_n \bigl(D(r) + D(h r') R_r\bigr) + D\bigl((h-n) z'\bigr) R_z
            & \text{gru_reset_before} \\
        \frac{\partial c'}{\partial (h, c)} &= \bigl(E, D(f)\bigr), \quad
            E = D(f' c) R_f + D\bigl(i (1-g^2)\bigr) R_g + D(i' g) R_i & \text{lstm} \\
        \frac{\partial h'}{\partial (h, c)} &= \bigl(D(o' \tanh c') R_o + D(m) E, \; D(m f)\bigr), \quad
            m = o (1 - \tanh^2 c')

    All other cells are differentiated by :func:`rnnkern.ops.recurrence_tangent` along unit vectors. At a kink, such as
    relu at 0, the result is that of the backward pass.

    Args:
        cell: as in :func:`rnnkern.ops.recurrence`.
        u: (B, G*H), the input projection; float32 or float64.
        R: (G*H, H), or (K, G*D, D) for K heads.
        state: ``(h,)``, for an LSTM ``(h, c)``, each (B, H).
        bias: b_hh, (G*H,).
        params: the cell's own tensors, as in :func:`rnnkern.ops.recurrence`.

    Returns:
        (B, n, n), where n is the number of columns of all tensors of the state together, in their order: 2H for an
        LSTM, h before c. Row i is the gradient of value i of the next state.

    Raises:
        ValueError: the cell or a shape is wrong.
        TypeError: an argument has the wrong type or dtype.

    Source: Can, Krishnamurthy and Schwab 2020, equations 11 and 31; Kerg 2022, equation 2.2.2.

    >>> u, R, h = torch.zeros(1, 2), torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.zeros(1, 2)
    >>> rnnkern.analysis.jacobian("tanh", u, R, (h,))
    tensor([[[0., 2.],
             [1., 0.]]])
    """
    cell = getattr(cell, "name", cell)
    if isinstance(u, Tensor):
        if u.dtype not in DTYPES:
            raise TypeError(f"jacobian: `u` must be float32 or float64, got {u.dtype}")
        if u.dim() != 2:
            raise ValueError(f"jacobian: `u` must be (B, G*H), got {tuple(u.shape)}")
    check(cell, u[None] if isinstance(u, Tensor) else u, R, state, bias, params, None, None, False, None, None)
    form = _FORMS.get(cell)
    if form is None:
        return _along_unit_vectors(cell, u, R, tuple(state), bias, tuple(params))
    gates = cell_of(cell).gates
    return form(u, product_of(R, bias, gates, None, None), _blocks(R, gates), *state, *params)


def _along_unit_vectors(cell, u, R, state, bias, params) -> Tensor:
    widths, batch = [s.shape[1] for s in state], u.shape[0]
    units = torch.eye(sum(widths), dtype=u.dtype, device=u.device).split(widths, -1)
    units = [x.unsqueeze(1).expand(-1, batch, -1) for x in units]
    found = recurrence_tangent(cell, u[None], R, state, units, bias=bias, params=params)
    return torch.cat(found.tangents, -1).permute(1, 2, 0)


def _blocks(R: Tensor, gates: int) -> Tensor:
    """The rows of each gate, (G, H, H)."""
    if R.dim() == 2:
        return R.unflatten(0, (gates, -1))
    return torch.stack([torch.block_diag(*blocks) for blocks in R.unflatten(1, (gates, -1)).unbind(1)])


def _rows(factors: Sequence[Tensor], blocks: Tensor) -> Tensor:
    """The sum of D(factor) R_g over the gates; factors are (B, H) each."""
    return torch.einsum("gbi,gij->bij", torch.stack(list(factors)), blocks)


def _with_diagonal(J: Tensor, diagonal: Tensor) -> Tensor:
    return J + torch.diag_embed(diagonal)


# ---- closed forms: functions of u, the product with R, its blocks, the state and the params


def _elman(slope: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The form of h' = phi(u + R h), from the derivative of phi."""

    def form(u: Tensor, product: Product, blocks: Tensor, h: Tensor, *params: Tensor) -> Tensor:
        return slope(u + product(h), *params).unsqueeze(-1) * blocks[0]

    return form


def _modrelu(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """modReLU of real numbers and its derivative, which is 0 at 0."""
    kept = (x != 0) & (x.abs() + bias > 0)
    return torch.where(kept, x + x.sign() * bias, 0), kept.to(x.dtype)


def _euler(u, product, blocks, h, dt):
    slope = dt * (1 - torch.tanh(u + product(h)).square())
    return _with_diagonal(slope.unsqueeze(-1) * blocks[0], torch.ones_like(h))


def _gru(activation: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """The form of a GRU whose reset gate comes after the product; ``activation`` of the new gate returns its value and
    its derivative."""

    def form(u: Tensor, product: Product, blocks: Tensor, h: Tensor, *params: Tensor) -> Tensor:
        (u_r, u_z, u_n), (r_r, r_z, w) = u.chunk(3, dim=-1), product(h).chunk(3, dim=-1)
        r, z = torch.sigmoid(u_r + r_r), torch.sigmoid(u_z + r_z)
        n, slope = activation(u_n + r * w, *params)
        slope = (1 - z) * slope
        return _with_diagonal(_rows([slope * w * r * (1 - r), (h - n) * z * (1 - z), slope * r], blocks), z)

    return form


def _tanh(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x)
    return y, 1 - y.square()


def _gru_reset_before(u, product, blocks, h):
    (u_r, u_z, u_n), (r_r, r_z) = u.chunk(3, dim=-1), product(h, 0, 2).chunk(2, dim=-1)
    r, z = torch.sigmoid(u_r + r_r), torch.sigmoid(u_z + r_z)
    n, slope = _tanh(u_n + product(r * h, 2, 3))
    R_r, R_z, R_n = blocks.unbind(0)
    inner = _with_diagonal((h * r * (1 - r)).unsqueeze(-1) * R_r, r)
    J = ((1 - z) * slope).unsqueeze(-1) * (R_n @ inner) + ((h - n) * z * (1 - z)).unsqueeze(-1) * R_z
    return _with_diagonal(J, z)


def _lstm(u, product, blocks, h, c):
    i, f, g, o = (u + product(h)).chunk(4, dim=-1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    y = torch.tanh(f * c + i * g)
    m = o * (1 - y.square())
    E = [i * (1 - i) * g, f * (1 - f) * c, i * (1 - g.square())]  # of R_i, R_f, R_g
    J = h.new_zeros(h.shape[0], 2, h.shape[1], 2, h.shape[1])  # of h' and c', with respect to h and c
    J[:, 0, :, 0] = _rows([*(m * x for x in E), o * (1 - o) * y], blocks)
    J[:, 1, :, 0] = _rows(E, blocks[:3])
    J[:, 0, :, 1].diagonal(dim1=-2, dim2=-1).copy_(m * f)
    J[:, 1, :, 1].diagonal(dim1=-2, dim2=-1).copy_(f)
    return J.flatten(3).flatten(1, 2)


_FORMS: dict[str, Callable[..., Tensor]] = {
    "tanh": _elman(lambda x: _tanh(x)[1]),
    "relu": _elman(lambda x: (x > 0).to(x.dtype)),
    "identity": _elman(torch.ones_like),
    "hardtanh": _elman(lambda x: (x.abs() < 1).to(x.dtype)),
    "modrelu": _elman(lambda x, bias: _modrelu(x, bias)[1]),
    "euler": _euler,
    "lstm": _lstm,
    "gru": _gru(_tanh),
    "goru": _gru(_modrelu),
    "gru_reset_before": _gru_reset_before,
}
