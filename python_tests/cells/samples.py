"""Cells of all kinds that rnnkern.cell supports, and calls of them with gradients."""

import torch

import rnnkern
from rnnkern.ops import recurrence


@rnnkern.cell(gates="fn", init={"leak": (0.1, 0.9)})
def several(u, r, h, c, *, leak, dt=0.5):
    """A cell with two states, a parameter and a constant."""
    f = torch.sigmoid(u.f + r.f)
    c = leak * c + dt * torch.tanh(u.n + f * r.n)
    return (1 - f) * h + f * c, c


@rnnkern.cell(gates="rzn")
def reset_before(u, r, h):
    z = torch.sigmoid(u.z + r.z)
    n = torch.tanh(u.n + r.n(torch.sigmoid(u.r + r.r) * h))
    return (1 - z) * n + z * h


@rnnkern.cell(gates="x", recurrent="xy")
def oscillators(u, r, y, z, *, dt=0.1):
    """A cell with a second product, which reads the second state and has no gate in u."""
    z = z + dt * (torch.tanh(u.x + r.x + r.y(z * torch.sigmoid(u.x))) - y)
    return y + dt * z, z


@rnnkern.cell(gates="fn", recurrent="")
def without_product(u, r, h):
    f = torch.sigmoid(u.f)
    return f * h + (1 - f) * u.n


@rnnkern.cell(gates="rzn")
def normalised_reset_before(u, r, h, *, w, b):
    """Norms of values before and after a second product."""
    z = torch.sigmoid(rnnkern.layer_norm(u.z) + r.z)
    n = torch.tanh(rnnkern.rms_norm(u.n + r.n(torch.sigmoid(u.r + r.r) * h), w))
    return rnnkern.layer_norm((1 - z) * n + z * h, None, b)


@rnnkern.cell(gates="zn")
def normalised_by_gate(u, r, h):
    """A norm of each gate of R h by itself."""
    z = torch.sigmoid(u.z + rnnkern.layer_norm(r.z))
    return (1 - z) * torch.tanh(u.n + rnnkern.rms_norm(r.n)) + z * h


@rnnkern.cell(gates="fn", recurrent="")
def normalised_without_product(u, r, h):
    u = rnnkern.rms_norm(u)
    f = torch.sigmoid(u.f)
    return rnnkern.layer_norm(f * h + (1 - f) * u.n)


NORMALISED = [
    rnnkern.cells.lstm_layer_norm, rnnkern.cells.dreamer_gru, normalised_reset_before, normalised_by_gate,
    normalised_without_product,
]  # fmt: skip
CELLS = [several, reset_before, oscillators, without_product, rnnkern.cells.slstm, rnnkern.cells.brc, rnnkern.cells.nas]


def call(
    cell, dtype=torch.float64, rounded=None, steps=5, batch=3, hidden=9, heads=1, drawn_with=0, op=recurrence,
    device="cpu", batch_sizes=None, **kwargs,
):  # fmt: skip
    """Values and gradients of a call; its inputs are first rounded to another dtype. A state called n, by which slstm
    divides, is positive, as a sum of exponentials is."""
    torch.manual_seed(drawn_with)
    gates, recurrent = len(cell.gates), len(cell.recurrent)

    def drawn(*shape):
        x = torch.randn(shape, dtype=torch.float64).mul(0.5)
        return x.to(rounded or dtype).to(device, dtype).requires_grad_()

    rows = (steps, batch) if batch_sizes is None else (int(batch_sizes.sum()),)
    leaves = [drawn(*rows, gates * hidden), *(drawn(batch, hidden) for _ in cell.states)]
    for name, x in zip(cell.states, leaves[1:], strict=True):
        if name == "n":
            x.data.abs_().add_(0.5)
    leaves += [drawn(rows * hidden) for rows in cell.rows]
    u, *rest = leaves
    state, params = rest[: len(cell.states)], rest[len(cell.states) :]
    sizes = (recurrent * hidden, hidden) if heads == 1 else (heads, recurrent * hidden // heads, hidden // heads)
    R, bias = drawn(*sizes), drawn(recurrent * hidden)
    leaves += [R, bias] if recurrent else []
    h, final = op(cell.name, u, R, state, bias=bias, params=params, batch_sizes=batch_sizes, **kwargs)
    loss = sum(
        (y * torch.linspace(-1, 1, y.numel(), dtype=dtype, device=device).view(y.shape)).sum() for y in (h, *final)
    )
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [h, *final, *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True))]
